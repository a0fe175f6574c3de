// The addresses of servers, as callers give them.

import { nameOf } from "./fields.js";

const SCHEMES = ["unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:"];
const HOST_AND_PORT = /^(?:[^\s:/[\]]+|\[[0-9A-Fa-f:.]+(?:%[\w.~-]+)?\]):([0-9]{1,5})$/;

/** The gRPC targets in a list or a comma-separated text; `name`: what errors call it. Throws TypeError if one is invalid or there is none. */
export function splitAddresses(address: string | readonly string[], name = "address"): string[] {
  if (typeof address !== "string" && !(Array.isArray(address) && address.every((one) => typeof one === "string"))) {
    throw new TypeError(`${name}: expected a text or a list of texts, got ${nameOf(address)}`);
  }
  const given = typeof address === "string" ? (/^ipv[46]:/.test(address) ? [address] : address.split(",")) : address;
  const addresses = given.map((one) => one.trim());
  if (addresses.length === 0 || addresses.includes("")) {
    const got = JSON.stringify(address);
    throw new TypeError(`${name}: expected host:port, or several with commas between them, got ${got}`);
  }
  for (const one of addresses) {
    if (!SCHEMES.some((scheme) => one.startsWith(scheme)) && !isHostAndPort(one)) {
      throw new TypeError(`${name}: expected host:port, [v6]:port or unix:path, got ${JSON.stringify(one)}`);
    }
  }
  return [...new Set(addresses)];
}

function isHostAndPort(address: string): boolean {
  const port = Number(HOST_AND_PORT.exec(address)?.[1]);
  return port >= 1 && port <= 65535;
}

/** Whether the address, or each that a target of `ipv4:` or `ipv6:` lists, is on this machine. */
export function isLocal(address: string): boolean {
  if (/^ipv[46]:/.test(address)) return address.slice("ipv4:".length).split(",").every(isLocalHost);
  return isLocalHost(address);
}

function isLocalHost(address: string): boolean {
  if (/^unix(-abstract)?:/.test(address)) return true;
  let host = address.replace(/\/+$/, "").split("/").at(-1)?.toLowerCase() ?? "";
  host = host.replace(/^dns:/, "");
  if (host.startsWith("[")) host = host.slice(1).split("]")[0] ?? "";
  else if (host.split(":").length === 2) host = host.split(":")[0] ?? "";
  return host === "localhost" || host === "::1" || /^127(\.\d{1,3}){3}$/.test(host);
}
