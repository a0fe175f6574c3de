// A client's servers and connections: round-robin, with failing servers ejected for a while.

import { Cancelled, DeadlineExceeded, type RingError, Unavailable } from "./errors.js";
import { now } from "./retry.js";
import type { Connection } from "./transport.js";

const FIRST_EJECTION = 500;
const LONGEST_EJECTION = 10_000;
/** Reasons for which a server may not have been started yet. */
const ABSENT = /ECONNREFUSED|ENOENT|EHOSTUNREACH|ENETUNREACH|timed out|has no address/;
const ADVICE = "`ringline serve` starts a server, waitForReady: true waits for one";

/** A connection and the number of calls that use it; it is closed only when idle. */
export interface PooledConnection {
  readonly connection: Connection;
  calls: number;
}

/** One address: its connection and its recent health. */
export class Server {
  /** Earlier connections that still have calls. */
  retired: PooledConnection[] = [];
  /** Length of the last ejection; 0 after a success. */
  ejection = 0;
  ejectedUntil = 0;
  /** When the last attempt to connect failed; 0 if none has. */
  refusedAt = 0;
  /** Why that attempt failed. */
  refusal = "";

  /** `stamp`: version of the files that `current` was made with. */
  constructor(
    readonly address: string,
    public current: PooledConnection,
    public stamp: string,
  ) {}

  /** Whether it failed recently: it is chosen only if all are ejected. */
  get ejected(): boolean {
    return this.ejectedUntil > now();
  }
}

/** The servers of one client. Each client starts at a random one, to spread the load. */
export class ServerPool {
  /** Whether any server has ever answered. */
  reached = false;
  /** Set when the client is closed: no connection is made afterwards. */
  closed = false;
  readonly #servers: Server[];
  readonly #connect: (address: string) => Connection;
  readonly #stamp: () => string;
  #next: number;

  /** `stamp`: its value changes with the files that `connect` reads. New calls then get a new connection. */
  constructor(addresses: readonly string[], connect: (address: string) => Connection, stamp: () => string = () => "") {
    this.#connect = connect;
    this.#stamp = stamp;
    const read = stamp();
    this.#servers = addresses.map((address) => new Server(address, { connection: connect(address), calls: 0 }, read));
    this.#next = Math.floor(Math.random() * addresses.length);
  }

  /**
   * The next server in turn that is not ejected, else the one whose ejection ends first; `avoid` loses ties. Until a
   * server is reached: the next untried server, else the one tried longest ago.
   */
  choose(avoid?: Server): Server {
    const at = now();
    let best: { index: number; wait: number; avoided: number } | undefined;
    for (let step = 0; step < this.#servers.length; step++) {
      const index = (this.#next + step) % this.#servers.length;
      const server = this.#at(index);
      const wait = this.reached ? Math.max(0, server.ejectedUntil - at) : server.refusedAt;
      const avoided = Number(server === avoid);
      if (best === undefined || wait < best.wait || (wait === best.wait && avoided < best.avoided)) {
        best = { index, wait, avoided };
      }
    }
    const index = best?.index ?? 0;
    this.#next = (index + 1) % this.#servers.length;
    this.#renew(this.#at(index));
    return this.#at(index);
  }

  /** The server's connection, kept open until `release`. Throws Cancelled if the client is closed. */
  use(server: Server): PooledConnection {
    if (this.closed) throw new Cancelled("the client is closed");
    server.current.calls++;
    return server.current;
  }

  /** One call that used the connection has ended. */
  release(used: PooledConnection): void {
    used.calls--;
  }

  /** Eject a server that was unreachable or lost, or refuses new requests; the time doubles with each failure. */
  failed(server: Server): void {
    if (server.ejected) return; // one failure that ends many requests counts once
    server.ejection = Math.min(Math.max(2 * server.ejection, FIRST_EJECTION), LONGEST_EJECTION);
    server.ejectedUntil = now() + server.ejection;
  }

  /**
   * Record what an error says about the server; returns the error to throw if the request is not retried.
   *
   * `began`: when the request began.
   */
  attemptFailed(server: Server, error: RingError, began: number): RingError {
    if (error instanceof Unavailable) this.failed(server);
    const reason = error instanceof Unavailable ? error.notConnected : undefined;
    if (reason === undefined) {
      this.reached ||= !(error instanceof Cancelled || error instanceof DeadlineExceeded);
      return error;
    }
    server.refusedAt = now();
    server.refusal = reason;
    if (!this.reached && this.#servers.every((each) => each.refusedAt >= began && each.refusedAt > 0)) {
      return notReached(this.#servers);
    }
    const unavailable = new Unavailable(`${server.address} is not available: ${reason}`);
    unavailable.partial = error.partial;
    return unavailable;
  }

  /** The server admitted a request: end its ejection. */
  succeeded(server: Server): void {
    this.reached = true;
    server.ejection = server.ejectedUntil = 0;
  }

  /** Whether some server other than `avoid` is not ejected, so that a retry needs no delay. */
  anyAvailable(avoid?: Server): boolean {
    return this.#servers.some((server) => server !== avoid && !server.ejected);
  }

  /** End every call and close the connections. */
  close(): void {
    this.closed = true;
    for (const server of this.#servers) {
      for (const used of [server.current, ...server.retired]) used.connection.close();
    }
  }

  #at(index: number): Server {
    const server = this.#servers[index];
    if (server === undefined) throw new RangeError(`there is no server ${index}`);
    return server;
  }

  /** Close idle retired connections. Reconnect if the files have changed and can be read. */
  #renew(server: Server): void {
    if (this.closed) return;
    for (const used of server.retired) if (used.calls === 0) used.connection.close();
    server.retired = server.retired.filter((used) => used.calls > 0);
    const read = this.#stamp();
    if (read === server.stamp) return;
    let connection: Connection;
    try {
      connection = this.#connect(server.address);
    } catch {
      return; // they are being replaced
    }
    server.retired.push(server.current);
    server.current = { connection, calls: 0 };
    server.stamp = read;
  }
}

/** The error of a client that has never reached a server. */
function notReached(servers: readonly Server[]): Unavailable {
  const reasons = Object.fromEntries(servers.map((server) => [server.address, server.refusal]));
  const said = servers.map((server) => `${server.address} is not available: ${server.refusal}`).join("; ");
  const absent = servers.some((server) => ABSENT.test(server.refusal));
  const error = new Unavailable(absent ? `${said}; ${ADVICE}` : said);
  error.unreached = reasons;
  return error;
}
