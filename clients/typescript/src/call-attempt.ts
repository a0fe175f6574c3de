// An attempt at a request by a call of its own, Generate.

import { Cancelled, fromLostCall, RingError, Truncated } from "./errors.js";
import type { Event } from "./results.js";
import type { RetryingRequest } from "./retrying-request.js";
import type { PooledConnection, Server, ServerPool } from "./server-pool.js";
import type { Attempt, Beginner } from "./stream.js";
import type { GenerateResponse } from "./stubs/ringline/inference/v1/inference_pb.js";
import type { Incoming } from "./transport.js";
import { within } from "./waiting.js";

/** Begins each attempt by a call on the next server's connection. */
export class CallBeginner implements Beginner {
  readonly #pool: ServerPool;
  readonly #metadata: () => Promise<Record<string, string>>;

  constructor(pool: ServerPool, metadata: () => Promise<Record<string, string>>) {
    this.#pool = pool;
    this.#metadata = metadata;
  }

  async begin(retrying: RetryingRequest, signal: AbortSignal): Promise<Attempt> {
    const metadata = await this.#headers(retrying, signal);
    const server = this.#pool.choose(retrying.avoid);
    const request = retrying.nextRequest();
    const timeoutMs = retrying.deadline.backstop();
    const used = this.#use(server, retrying);
    const call = used.connection.generate(request, { timeoutMs, metadata });
    return new CallAttempt(call, retrying, this.#pool, server, used);
  }

  anyAvailable(retrying: RetryingRequest): boolean {
    return this.#pool.anyAvailable(retrying.avoid);
  }

  /** The token may come from a function of the caller's, which may take its time. */
  async #headers(retrying: RetryingRequest, signal: AbortSignal): Promise<Record<string, string>> {
    try {
      return await within(this.#metadata(), signal, retrying.deadline, "there was a token");
    } catch (error) {
      throw error instanceof RingError ? retrying.reader.ended(error) : error;
    }
  }

  #use(server: Server, retrying: RetryingRequest): PooledConnection {
    try {
      return this.#pool.use(server);
    } catch (closed) {
      throw closed instanceof Cancelled ? retrying.reader.ended(closed) : closed;
    }
  }
}

class CallAttempt implements Attempt {
  readonly #call: Incoming<GenerateResponse>;
  readonly #retrying: RetryingRequest;
  readonly #pool: ServerPool;
  readonly #server: Server;
  readonly #used: PooledConnection;
  /** Events read but not yet taken: one response may bring two. */
  readonly #events: Event[] = [];
  #over = false;
  #error: RingError | undefined;

  constructor(
    call: Incoming<GenerateResponse>,
    retrying: RetryingRequest,
    pool: ServerPool,
    server: Server,
    used: PooledConnection,
  ) {
    this.#call = call;
    this.#retrying = retrying;
    this.#pool = pool;
    this.#server = server;
    this.#used = used;
  }

  async next(): Promise<Event | undefined> {
    while (this.#events.length === 0) {
      if (this.#error !== undefined) throw this.#error;
      if (this.#over) return undefined;
      await this.#read();
    }
    return this.#events.shift();
  }

  cancel(): void {
    this.#call.cancel();
    this.#end();
  }

  async #read(): Promise<void> {
    let response: GenerateResponse | undefined;
    try {
      response = await this.#call.read();
    } catch (error) {
      if (!this.#over) this.#lost(fromLostCall(error as RingError));
      return;
    }
    if (response === undefined) {
      this.#lost(new Truncated("the stream ended before the request did"));
      return;
    }
    try {
      const events = this.#retrying.read(response);
      if (events.some(({ type }) => type === "admitted" || type === "resumed")) this.#pool.succeeded(this.#server);
      this.#events.push(...events);
      if (this.#retrying.reader.done) await this.#finish();
    } catch (error) {
      this.#fail(error as RingError);
    }
  }

  /** Check that no response follows the end. */
  async #finish(): Promise<void> {
    const after = await this.#call.read().catch(() => undefined);
    if (after !== undefined) this.#retrying.read(after);
    this.#error = this.#retrying.reader.failure;
    this.#end();
  }

  #lost(cause: RingError): void {
    const error = this.#retrying.reader.lost(cause);
    if (error !== undefined) {
      this.#fail(error);
      return;
    }
    this.#error = this.#retrying.reader.failure; // every choice had ended
    this.#end();
  }

  #fail(error: RingError): void {
    this.#error = this.#retrying.failedAt(this.#server, this.#pool, error);
    this.cancel();
  }

  #end(): void {
    if (this.#over) return;
    this.#over = true;
    this.#pool.release(this.#used);
  }
}
