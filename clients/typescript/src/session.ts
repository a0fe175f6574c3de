// Many requests over one Session stream, opened when needed and replaced when it ends or drains.

/// <reference lib="esnext.disposable" preserve="true" />

import { retryingRequest } from "./asking.js";
import { Cancelled, RingError, Unavailable } from "./errors.js";
import type { Options, Prompt } from "./options.js";
import type { Generation } from "./results.js";
import { now, type RetryPolicy } from "./retry.js";
import type { RetryingRequest } from "./retrying-request.js";
import type { Server, ServerPool } from "./server-pool.js";
import { SessionStream } from "./session-stream.js";
import { type Attempt, type Beginner, Stream } from "./stream.js";
import type { Duplex } from "./transport.js";
import { within } from "./waiting.js";

/** Least patience, so that all servers are tried if they refuse at once. */
const LEAST_PATIENCE_MS = 1000;

/** What a session takes from its client. */
export interface SessionSettings {
  readonly pool: ServerPool;
  readonly policy: RetryPolicy;
  readonly timeoutMs: number | undefined;
  readonly metadata: () => Promise<Record<string, string>>;
}

/**
 * Any number of concurrent requests on one stream, which opens with the first and reopens when it ends. Requests beyond
 * the server's limit of live ones wait. Close it with `close()`, or `await using`.
 */
export class Session implements Beginner {
  readonly #settings: SessionSettings;
  readonly #prefix = crypto.randomUUID().slice(0, 8); // so that generated ids differ from callers' ids
  #count = 0;
  /** New requests go to the last stream whose server works; the others finish their requests. */
  #streams: SessionStream[] = [];
  #opening: Promise<SessionStream> | undefined;
  /** The call whose first frame is awaited. */
  #openingCall: Duplex | undefined;
  #closed = false;

  /** Made by `Client.session()`. @internal */
  constructor(settings: SessionSettings) {
    this.#settings = settings;
  }

  /** The whole answer; see `Client.generate`. */
  async generate<T = unknown>(prompt: Prompt, options: Options<T> = {}): Promise<Generation<T>> {
    return this.stream(prompt, options).result();
  }

  /** The answer as it arrives; see `Client.stream`. */
  stream<T = unknown>(prompt: Prompt, options: Options<T> = {}): Stream<T> {
    const retrying = retryingRequest(prompt, options, this.#settings);
    return new Stream(this, retrying, options.signal);
  }

  /** End every running request and the stream. */
  close(): void {
    this.#closed = true;
    this.#openingCall?.cancel();
    for (const stream of this.#streams) stream.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** @internal */
  async begin(retrying: RetryingRequest, signal: AbortSignal): Promise<Attempt> {
    try {
      for (;;) {
        const opened = this.#usableStream(retrying.avoid);
        const stream = await within(opened, signal, retrying.deadline, "a server opened a session");
        const attempt = await stream.begin(retrying, signal);
        if (attempt !== undefined) return attempt; // else that stream drains: try the next
      }
    } catch (error) {
      throw error instanceof RingError ? retrying.reader.ended(error) : error;
    }
  }

  /** @internal */
  anyAvailable(retrying: RetryingRequest): boolean {
    return this.#settings.pool.anyAvailable(retrying.avoid);
  }

  /** The stream for new requests, to a server other than `avoid` if possible. Concurrent callers wait for the same. */
  async #usableStream(avoid: Server | undefined): Promise<SessionStream> {
    if (this.#closed) throw new Cancelled("the session is closed");
    const usable = this.#streams.filter((stream) => stream.usable);
    const working = usable.filter((stream) => !stream.server.ejected);
    const other = working.findLast((stream) => stream.server !== avoid);
    if (other !== undefined) return other;
    const last = working.at(-1) ?? usable.at(-1);
    if (last !== undefined && !this.#settings.pool.anyAvailable(avoid)) return last;
    this.#opening ??= this.#open(avoid).finally(() => {
      this.#opening = undefined;
    });
    try {
      return await this.#opening;
    } catch (error) {
      throw error instanceof RingError ? error.copy() : error; // each caller has its own
    }
  }

  async #open(avoid: Server | undefined): Promise<SessionStream> {
    const stream = await this.#openSomewhere(avoid);
    this.#streams = [...this.#streams.filter((old) => !old.ended && old !== stream), stream];
    if (this.#closed) {
      stream.close();
      throw new Cancelled("the session was closed");
    }
    return stream;
  }

  /**
   * A stream to the first server that accepts one, or that has a usable one.
   *
   * If none does, rejects with the last server's error, or one that names every server if none was ever reached. A server
   * that never answers takes seconds: past the policy's patience, the remaining servers are not tried.
   */
  async #openSomewhere(avoid: Server | undefined): Promise<SessionStream> {
    const { pool, policy, metadata } = this.#settings;
    const began = now();
    for (;;) {
      const server = pool.choose(avoid);
      const present = this.#streams.find((stream) => stream.usable && stream.server === server);
      if (present !== undefined) return present; // the other servers are gone, and only `avoid` is left
      const headers = await metadata();
      const used = pool.use(server);
      try {
        const call = used.connection.session?.({ timeoutMs: undefined, metadata: headers });
        if (call === undefined) throw new Error("this connection has no sessions");
        this.#openingCall = call;
        const newId = () => `${this.#prefix}-${++this.#count}`;
        return await SessionStream.open(call, pool, server, newId, () => pool.release(used));
      } catch (refusal) {
        if (!(refusal instanceof RingError)) throw refusal;
        if (this.#closed) throw new Cancelled("the session was closed");
        const error = pool.attemptFailed(server, refusal, began);
        if (!(error instanceof Unavailable)) throw error;
        const impatient = now() - began >= Math.max(policy.patienceMs, LEAST_PATIENCE_MS);
        if (error.unreached !== undefined || impatient || (pool.reached && !pool.anyAvailable())) throw error;
      } finally {
        this.#openingCall = undefined;
      }
    }
  }
}
