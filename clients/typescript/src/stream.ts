// The stream of one answer.

/// <reference lib="esnext.disposable" preserve="true" />

import { Cancelled, RingError } from "./errors.js";
import type { Admitted, Delta, Event, Generation, Usage } from "./results.js";
import type { RetryingRequest } from "./retrying-request.js";
import { onAbort, sleep } from "./waiting.js";

/** One attempt at one request. */
export interface Attempt {
  /** The next event; undefined after the last. Rejects with the error that ended the attempt. */
  next(): Promise<Event | undefined>;
  /** End it, here and at the server. */
  cancel(): void;
}

/** Begins attempts at a request. */
export interface Beginner {
  /** Rejects with a RingError, and soon after the signal is aborted. */
  begin(retrying: RetryingRequest, signal: AbortSignal): Promise<Attempt>;
  /** Whether some server that the request does not avoid is not ejected. */
  anyAvailable(retrying: RetryingRequest): boolean;
}

/**
 * One request's answer, delta by delta: `for await (const delta of stream)`. The request is sent when the first delta is
 * awaited. Leaving the loop early cancels the request, and so does `close()`.
 */
export class Stream<T = unknown> implements AsyncIterable<Delta> {
  readonly #beginner: Beginner;
  readonly #retrying: RetryingRequest<T>;
  readonly #closing = new AbortController();
  readonly #signal: AbortSignal | undefined;
  #attempt: Attempt | undefined;
  #failure: unknown;
  #ended = false;
  /** Stop waiting for the caller's signal. */
  #forget: () => void = () => undefined;
  /** The last reader's turn: events are read one after the other. */
  #turn: Promise<unknown> = Promise.resolve();

  /** Made by `Client.stream()`. @internal */
  constructor(beginner: Beginner, retrying: RetryingRequest<T>, signal: AbortSignal | undefined) {
    this.#beginner = beginner;
    this.#retrying = retrying;
    this.#signal = signal;
    if (signal?.aborted) this.#abort();
    else if (signal !== undefined) this.#forget = onAbort(signal, this.#abort);
  }

  /** The request as the server admitted it; undefined until then. */
  get request(): Admitted | undefined {
    return this.#retrying.reader.admitted;
  }

  /** The request's token counts; undefined until it has ended. */
  get usage(): Usage | undefined {
    return this.#retrying.reader.usage;
  }

  [Symbol.asyncIterator](): AsyncIterator<Delta, undefined> {
    return iterator(async () => {
      for (;;) {
        const event = await this.#next();
        if (event === undefined || event.type === "delta") return event;
      }
    }, this);
  }

  /** All events, not only deltas. */
  events(): AsyncIterable<Event> {
    return { [Symbol.asyncIterator]: () => iterator(() => this.#next(), this) };
  }

  /** The whole answer, when the request has ended. Rejects with the request's error; Cancelled if closed before. */
  async result(): Promise<Generation<T>> {
    while ((await this.#next()) !== undefined);
    const { reader } = this.#retrying;
    if (!reader.done) throw reader.ended(new Cancelled("the stream was closed"));
    return reader.generation();
  }

  /** Cancel the request if it has not ended. */
  close(): void {
    this.#forget();
    this.#closing.abort();
    this.#attempt?.cancel();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  readonly #abort = (): void => {
    if (!this.#ended) {
      const cause: unknown = this.#signal?.reason;
      this.#failure ??= this.#retrying.reader.ended(new Cancelled("the request was cancelled", { cause }));
    }
    this.close();
  };

  #next(): Promise<Event | undefined> {
    const turn = this.#turn.then(() => this.#advance());
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  /** The next event, over any number of attempts; undefined after the last. */
  async #advance(): Promise<Event | undefined> {
    const closing = this.#closing.signal;
    while (this.#failure === undefined && !closing.aborted) {
      try {
        this.#attempt ??= await this.#beginner.begin(this.#retrying, closing);
        if (closing.aborted) {
          this.#attempt.cancel();
          break;
        }
        const event = await this.#attempt.next();
        if (closing.aborted) break;
        if (event === undefined) {
          this.#ended = true;
          this.#forget();
        }
        return event;
      } catch (error) {
        if (!closing.aborted) await this.#waitToRetry(error, closing);
      }
    }
    if (this.#failure !== undefined) throw this.#failure;
    return undefined;
  }

  async #waitToRetry(error: unknown, closing: AbortSignal): Promise<void> {
    let delay: number;
    try {
      if (!(error instanceof RingError)) throw error;
      delay = this.#retrying.delay(error, this.#beginner.anyAvailable(this.#retrying));
    } catch (final) {
      this.#failure = final;
      this.#forget();
      return;
    }
    this.#attempt = undefined;
    if (delay > 0) await sleep(delay, closing);
  }
}

/** An iterator that closes the stream when its loop is left early. */
function iterator<Item extends Event>(
  next: () => Promise<Item | undefined>,
  stream: { close(): void },
): AsyncIterator<Item, undefined> {
  return {
    next: async (): Promise<IteratorResult<Item, undefined>> => {
      const value = await next();
      return value === undefined ? { done: true, value: undefined } : { done: false, value };
    },
    return: async () => {
      stream.close();
      return { done: true, value: undefined };
    },
  };
}
