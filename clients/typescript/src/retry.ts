// The retry rule: which errors are retried, after which delay, and until when. Times are milliseconds.

import { DeadlineExceeded, invalid, Overloaded, type RingError, Unavailable } from "./errors.js";

/** Milliseconds that a call may take if neither it nor its client says: none waits for ever. */
export const DEFAULT_TIMEOUT = 3_600_000;
/** Milliseconds after a request's deadline at which the client ends it if the server has not. */
export const GRACE = 1000;
/** The error reasons of a request that no server can continue because its model, or its adapter, is gone. */
export const ADAPTER_GONE = "ADAPTER_GONE";

const GONE = ["MODEL_GONE", ADAPTER_GONE];
const FIRST_DELAY = 100;
const LONGEST_DELAY = 1000;
/** The limit of doubling the delay that an overloaded server asked for. */
const LONGEST_RETRY = 30_000;
const MOST_DOUBLINGS = 10;
const JITTER = 1.5;
/** A week: timers, of JavaScript and of gRPC, hold 24 days and more would end at once. */
const LONGEST_TIMEOUT = 604_800_000;

/** Milliseconds on a clock that never goes back. */
export function now(): number {
  return performance.now();
}

/** A point in time, or none. */
export class Deadline {
  readonly #end: number | undefined;

  /** `timeoutMs`: from now. Throws InvalidRequest if it is out of range, TypeError if it is no number. */
  constructor(timeoutMs: number | undefined) {
    if (timeoutMs === undefined) return;
    checkNumber("timeoutMs", timeoutMs);
    if (!(timeoutMs > 0 && timeoutMs <= LONGEST_TIMEOUT)) {
      throw invalid("timeoutMs", `${timeoutMs} is out of range: expected more than 0 and at most ${LONGEST_TIMEOUT}`);
    }
    this.#end = now() + timeoutMs;
  }

  /** Milliseconds left, > 0; undefined without a deadline. Throws DeadlineExceeded when it has passed. */
  remaining(): number | undefined {
    if (this.#end === undefined) return undefined;
    const left = this.#end - now();
    if (left <= 0) throw new DeadlineExceeded("the timeout passed before a server took the request");
    return left;
  }

  /** After how long the client ends the request if the server has not; undefined without a deadline. */
  backstop(): number | undefined {
    const left = this.remaining();
    return left === undefined ? undefined : left + GRACE;
  }
}

/** A client's retry options, as documented at `ClientOptions`. */
export class RetryPolicy {
  constructor(
    readonly patienceMs = 30_000,
    readonly retries = 3,
    readonly retryOverloaded = false,
    readonly waitForReady = false,
  ) {
    for (const [name, value] of Object.entries({ patienceMs, retries })) {
      checkNumber(name, value);
      if (!(value >= 0)) throw invalid(name, `${value} is out of range: expected at least 0`);
    }
  }
}

/**
 * Decides for one request whether an error is retried.
 *
 * An outage lasts from the first error until a server takes the request, at most `patienceMs`. A client that has never
 * reached a server does not wait for one, unless `waitForReady`. A request that lost its server more than `retries` times
 * with nothing delivered in between is not retried: it may be crashing servers. A server that admits the request but then
 * refuses it as Overloaded, its engine being full, has not taken it: the outage goes on.
 */
export class RetryState {
  readonly #policy: RetryPolicy;
  readonly #deadline: Deadline;
  #outageBegan: number | undefined;
  #delay = FIRST_DELAY;
  /** Whether the current attempt was admitted. */
  #admitted = false;
  /** Whether some server has taken the request: it delivered something, or was lost after admitting it. */
  #taken = false;
  /** Consecutive attempts refused for overload. */
  #refusals = 0;
  /** Consecutive attempts that were admitted, then lost, with nothing delivered. */
  #lost = 0;

  constructor(policy: RetryPolicy, deadline: Deadline) {
    this.#policy = policy;
    this.#deadline = deadline;
  }

  /** Whether the policy allows to retry a request after it was admitted. */
  get resumable(): boolean {
    return this.#policy.patienceMs > 0 && (this.#policy.retries > 0 || this.#policy.retryOverloaded);
  }

  /** A server admitted the request. */
  admitted(): void {
    this.#admitted = true;
  }

  /** A part of the answer arrived. */
  delivered(): void {
    this.#take();
    this.#lost = 0;
  }

  /**
   * How long to wait before the next attempt; throws `error` if it is not retried.
   *
   * `beginsAnew`: the next attempt needs nothing of what the last one had. 0 if some server is not ejected; else doubling
   * up to 1 s, with jitter. At least the delay that an overloaded server asked for, doubled with each consecutive
   * refusal, plus up to half of that as jitter.
   */
  delay(error: RingError, anyAvailable: boolean, beginsAnew = false): number {
    const least = this.#leastDelay(error, beginsAnew);
    if (least === undefined) throw error;
    if (this.#admitted && !(error instanceof Overloaded)) {
      this.#take();
      this.#lost++;
      if (this.#lost > this.#policy.retries) throw error;
    }
    this.#admitted = false;
    let delay = least;
    if (!anyAvailable) {
      delay = Math.max(least, this.#delay * uniform(0.5, 1));
      this.#delay = Math.min(2 * this.#delay, LONGEST_DELAY);
    }
    const at = now();
    this.#outageBegan ??= at;
    let remaining: number | undefined;
    try {
      remaining = this.#deadline.remaining();
    } catch {
      throw new DeadlineExceeded(`the timeout passed; the last attempt failed: ${error.message}`, { cause: error });
    }
    const impatient = at + delay - this.#outageBegan >= this.#policy.patienceMs;
    if (impatient || (remaining !== undefined && delay >= remaining)) throw error;
    return delay;
  }

  /** A server has taken the request: the outage is over. */
  #take(): void {
    this.#taken = true;
    this.#outageBegan = undefined;
    this.#delay = FIRST_DELAY;
    this.#refusals = 0;
  }

  /** Undefined: the error is not retried. */
  #leastDelay(error: RingError, beginsAnew: boolean): number | undefined {
    if (error instanceof Unavailable) {
      const isGone = GONE.includes(error.reason ?? "") && !beginsAnew;
      return isGone || (error.unreached !== undefined && !this.#policy.waitForReady) ? undefined : 0;
    }
    if (error instanceof Overloaded) {
      // A resume is retried even if the policy does not retry overload.
      if (this.#taken) return this.#backoff(error.retryAfterMs || FIRST_DELAY);
      if (this.#policy.retryOverloaded && error.retryAfterMs !== undefined) return this.#backoff(error.retryAfterMs);
    }
    return undefined;
  }

  /** Exponential, with jitter, so that clients refused together do not retry together. */
  #backoff(asked: number): number {
    const delay = Math.min(asked * 2 ** this.#refusals, Math.max(asked, LONGEST_RETRY));
    this.#refusals = Math.min(this.#refusals + 1, MOST_DOUBLINGS);
    return delay * uniform(1, JITTER);
  }
}

function uniform(low: number, high: number): number {
  return low + Math.random() * (high - low);
}

function checkNumber(name: string, value: unknown): void {
  if (typeof value !== "number") throw new TypeError(`${name}: expected a number, got ${typeof value}`);
}
