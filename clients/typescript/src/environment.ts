// What a client takes from the environment if its caller names no server: the address, and the token for it.

import { splitAddresses } from "./addresses.js";
import type { SharedOptions, Token } from "./client.js";

const DEFAULT_ADDRESS = "127.0.0.1:50051";
const ADDRESS_VARIABLE = "RINGLINE_ADDRESS";
const TOKEN_VARIABLE = "RINGLINE_TOKEN";

/** Which servers a client calls, and the token that it shows them. */
export interface Target {
  readonly addresses: string[];
  readonly token: Token | undefined;
  /** Where the token comes from, for errors: the option or the variable. */
  readonly tokenName: string;
}

/**
 * The caller's address and token; those of the environment if the caller gives no address.
 *
 * The variable's token goes to no server that a program names: it may serve others, who must not act with the rights of
 * its environment. A token, or `authorization` in `metadata`, replaces it. Throws TypeError for malformed addresses.
 */
export function findTarget(
  address: string | readonly string[] | undefined,
  { token, metadata }: Pick<SharedOptions, "token" | "metadata">,
): Target {
  if (address !== undefined) return { addresses: splitAddresses(address), token, tokenName: "token" };
  const named = process.env[ADDRESS_VARIABLE]?.trim();
  const addresses = named ? splitAddresses(named, ADDRESS_VARIABLE) : [DEFAULT_ADDRESS];
  const ofEnvironment = process.env[TOKEN_VARIABLE]?.trim();
  const isGiven = token !== undefined || Object.keys(metadata ?? {}).some((key) => key.toLowerCase() === "authorization");
  if (isGiven || !ofEnvironment) return { addresses, token, tokenName: "token" };
  return { addresses, token: ofEnvironment, tokenName: TOKEN_VARIABLE };
}
