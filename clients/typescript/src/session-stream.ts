// One Session stream: requests and cancels go out through one writer, responses come in through one reader.
//
// The reader never pauses, so a slow consumer does not stall the others: events wait in memory until taken, at most one
// answer per consumer. The server's limit of live requests bounds what goes out.

import { create, toBinary } from "@bufbuild/protobuf";
import { hasPictures } from "./content-parts.js";
import { Cancelled, DeadlineExceeded, fromLostCall, invalid, ProtocolError, RingError, Unavailable } from "./errors.js";
import type { Event } from "./results.js";
import type { RetryingRequest } from "./retrying-request.js";
import type { Deadline } from "./retry.js";
import type { Server, ServerPool } from "./server-pool.js";
import type { Attempt } from "./stream.js";
import {
  type GenerateRequest,
  type GenerateResponse,
  type SessionLimits,
  type SessionRequest,
  SessionRequestSchema,
  type SessionResponse,
} from "./stubs/ringline/inference/v1/inference_pb.js";
import type { Duplex } from "./transport.js";

/** Bytes that the frame may add to a request. */
const FRAME_BYTES = 512;
const FIRST_FRAME_MS = 10_000;

/** One attempt at one request on one Session stream; holds its events until taken. */
export class SessionAttempt implements Attempt {
  error: RingError | undefined;
  readonly #events: Event[] = [];
  #taken = 0;
  #wakeUp: (() => void) | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `ordinal`: of the frame that begins it. `abandon` tells the server that nobody waits for the answer. */
  constructor(
    readonly retrying: RetryingRequest,
    readonly requestId: string,
    readonly ordinal: bigint,
    private readonly abandon: (attempt: SessionAttempt) => void,
    backstop: number | undefined,
  ) {
    if (backstop !== undefined) this.#timer = setTimeout(() => this.#expire(), Math.min(backstop, 2 ** 31 - 1));
  }

  /** Whether no event will be added. */
  get over(): boolean {
    return this.error !== undefined || this.retrying.reader.done;
  }

  async next(): Promise<Event | undefined> {
    while (this.#taken === this.#events.length) {
      this.#events.length = this.#taken = 0;
      if (this.error !== undefined) throw this.error;
      if (this.over) return undefined;
      await new Promise<void>((resolve) => {
        this.#wakeUp = resolve;
      });
    }
    return this.#events[this.#taken++];
  }

  /** Read a response; returns whether it is the request's last. */
  take(response: GenerateResponse): boolean {
    let events: Event[];
    try {
      events = this.retrying.read(response);
    } catch (error) {
      this.error ??= error as RingError;
      this.#wake();
      return true;
    }
    const { done, failure } = this.retrying.reader;
    if (this.error === undefined) {
      // Else nobody waits for the answer.
      this.#events.push(...events);
      if (done) this.error = failure;
      this.#wake();
    }
    return done;
  }

  /** End the attempt with an error, unless it has ended. */
  fail(cause: RingError): void {
    if (!this.over) this.error = this.retrying.reader.lost(cause) ?? this.retrying.reader.failure;
    this.#wake();
  }

  cancel(): void {
    this.#giveUp(new Cancelled("the request was cancelled"));
  }

  #expire(): void {
    this.#giveUp(new DeadlineExceeded("the timeout passed, and the server did not end the request"));
  }

  #giveUp(cause: RingError): void {
    if (this.over) return;
    this.fail(cause);
    this.abandon(this);
  }

  #wake(): void {
    if (this.over) clearTimeout(this.#timer);
    this.#wakeUp?.();
    this.#wakeUp = undefined;
  }
}

/** One Session stream, from its first frame (the limits) to its end. */
export class SessionStream {
  #ended = false;
  #draining: boolean;
  readonly #limits: SessionLimits;
  readonly #live = new Map<string, SessionAttempt>();
  /** By the ordinal of the first frame: the answer to a refused frame may name nothing else. */
  readonly #unanswered = new Map<bigint, SessionAttempt>();
  #ordinal = 0n;
  /** Packed frames. */
  #outbox: Uint8Array[] = [];
  #writing = false;
  #free: number;
  #waiting: (() => void)[] = [];
  readonly #onEnd: () => void;

  private constructor(
    private readonly call: Duplex,
    private readonly pool: ServerPool,
    readonly server: Server,
    first: SessionResponse & { limits: SessionLimits },
    private readonly newId: () => string,
    onEnd: () => void,
  ) {
    this.#limits = first.limits;
    this.#free = first.limits.maxLiveRequests;
    this.#draining = first.draining !== undefined;
    this.#onEnd = onEnd;
    void this.#read();
  }

  /**
   * Wait for the server's first frame, with its limits. Rejects with a RingError if it is refused, lost or invalid.
   *
   * `onEnd` is called once, when the stream has ended or was not opened.
   */
  static async open(
    call: Duplex,
    pool: ServerPool,
    server: Server,
    newId: () => string,
    onEnd: () => void,
  ): Promise<SessionStream> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    try {
      const late = new Promise<never>((_, reject) => {
        const error = new Unavailable(`the server did not open a session within ${FIRST_FRAME_MS / 1000} s`);
        timer = setTimeout(() => reject(error), FIRST_FRAME_MS);
      });
      const first = await Promise.race([call.read(), late]);
      if (first === undefined) throw new Unavailable("the server ended the session before its first frame");
      const { limits } = first;
      if (limits === undefined || limits.maxLiveRequests === 0) {
        throw new ProtocolError("the server broke the protocol: the session's first frame has no limits");
      }
      pool.succeeded(server);
      return new SessionStream(call, pool, server, { ...first, limits }, newId, onEnd);
    } catch (error) {
      call.cancel();
      onEnd();
      throw fromLostCall(error as RingError);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Whether the stream takes new requests. */
  get usable(): boolean {
    return !this.#draining && !this.#ended;
  }

  get ended(): boolean {
    return this.#ended;
  }

  /**
   * Send a request once the number of live ones is below the limit.
   *
   * Undefined if the server is draining by then: another stream must take the request. Rejects with Unavailable if the
   * stream ends first, InvalidRequest for a request too large or an id in use.
   */
  async begin(retrying: RetryingRequest, signal: AbortSignal): Promise<SessionAttempt | undefined> {
    await this.#waitForSlot(retrying.deadline, signal);
    try {
      if (this.#ended) throw new Unavailable("the session ended before the request was sent");
      if (this.#draining) {
        this.#release();
        return undefined;
      }
      const request = retrying.nextRequest();
      const requestId = this.#claimId(request);
      const packed = pack({ case: "generate", value: request });
      this.#checkSize(request, packed.length);
      const backstop = retrying.deadline.backstop();
      const attempt = new SessionAttempt(retrying, requestId, this.#send(packed), this.#abandon, backstop);
      this.#live.set(requestId, attempt);
      this.#unanswered.set(attempt.ordinal, attempt);
      return attempt;
    } catch (error) {
      this.#release();
      throw error;
    }
  }

  /** End every live request and the stream. */
  close(): void {
    this.#end(new Cancelled("the session was closed"));
    this.call.cancel();
  }

  async #waitForSlot(deadline: Deadline, signal: AbortSignal): Promise<void> {
    const left = deadline.remaining();
    if (signal.aborted) throw new Cancelled("the request was cancelled");
    if (this.#free > 0) {
      this.#free--;
      return;
    }
    await new Promise<void>((resolve, reject) => {
      const stop = (error?: RingError) => {
        clearTimeout(timer);
        signal.removeEventListener("abort", cancelled);
        if (error === undefined) {
          resolve();
          return;
        }
        this.#waiting = this.#waiting.filter((waiter) => waiter !== go);
        reject(error);
      };
      const go = () => stop();
      const cancelled = () => stop(new Cancelled("the request was cancelled"));
      const timer = left === undefined ? undefined : setTimeout(() => stop(this.#late()), left);
      signal.addEventListener("abort", cancelled);
      this.#waiting.push(go);
    });
  }

  #late(): DeadlineExceeded {
    const limit = this.#limits.maxLiveRequests;
    const reason = `${limit} requests of this session are live, the server's limit; client.session() opens another`;
    return new DeadlineExceeded(`the timeout passed while the request waited to be sent: ${reason}`);
  }

  /** Give a place to the next that waits. */
  #release(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free++;
    else next();
  }

  #checkSize(request: GenerateRequest, size: number): void {
    const limit = this.#limits.maxMessageBytes - FRAME_BYTES;
    if (limit <= 0 || size <= limit) return;
    const pictures = request.prompt.case === "chat" && hasPictures(request.prompt.value);
    const advice = pictures ? "; send fewer or smaller pictures" : "";
    throw invalid("prompt", `a request of ${size} bytes: expected at most ${limit}${advice}`);
  }

  /** Give the request an id if it has none. Throws InvalidRequest if a live request has the same. */
  #claimId(request: GenerateRequest): string {
    // A resumed request began on another stream, where its id was free.
    if (request.resume !== undefined && this.#live.has(request.requestId)) request.requestId = "";
    request.requestId ||= this.newId();
    if (this.#live.has(request.requestId)) {
      throw invalid("requestId", `${request.requestId} is the id of a live request of this session: expected another`);
    }
    return request.requestId;
  }

  /** Queue a frame; returns its ordinal. */
  #send(packed: Uint8Array): bigint {
    this.#outbox.push(packed);
    void this.#write();
    return ++this.#ordinal;
  }

  /** Cancel a request at the server; it stays live until the server ends it. */
  readonly #abandon = (attempt: SessionAttempt): void => {
    const { requestId } = attempt;
    if (this.#live.get(requestId) !== attempt || this.#ended) return;
    this.#send(pack(create(SessionRequestSchema, { frame: { case: "cancel", value: { requestId } } }).frame));
  };

  async #write(): Promise<void> {
    if (this.#writing) return;
    this.#writing = true;
    try {
      for (let next = this.#outbox.shift(); next !== undefined && !this.#ended; next = this.#outbox.shift()) {
        await this.call.write(next);
      }
      if (this.#draining && this.#live.size === 0 && !this.#ended) this.call.end(); // let the server end the stream
    } catch {
      // The reader gets the error.
    } finally {
      this.#writing = false;
    }
  }

  async #read(): Promise<void> {
    let cause: RingError = new Unavailable("the session ended");
    try {
      for (let frame = await this.call.read(); frame !== undefined; frame = await this.call.read()) {
        for (const response of frame.responses) this.#deliver(response);
        if (frame.draining !== undefined) this.#drain();
      }
    } catch (error) {
      cause = error instanceof RingError ? fromLostCall(error) : new Unavailable(String(error));
    }
    this.#end(cause);
  }

  #deliver(response: GenerateResponse): void {
    const attempt = this.#unanswered.get(response.inReplyTo) ?? this.#live.get(response.requestId);
    if (attempt === undefined) return; // it was given up
    this.#unanswered.delete(attempt.ordinal);
    if (response.event.case === "admitted") this.pool.succeeded(this.server);
    if (!attempt.take(response)) return;
    if (attempt.error instanceof ProtocolError) this.#abandon(attempt); // the server may still run it
    else if (attempt.error !== undefined) attempt.retrying.failedAt(this.server, this.pool, attempt.error);
    this.#live.delete(attempt.requestId);
    this.#release();
    if (this.#draining) void this.#write();
  }

  #drain(): void {
    this.#draining = true;
    this.pool.failed(this.server);
    this.#release(); // wakes the first that waits in `begin`; each passes the place on
    void this.#write();
  }

  #end(cause: RingError): void {
    if (this.#ended) return;
    this.#ended = true;
    if (!(cause instanceof Cancelled) && !this.#draining) this.pool.failed(this.server);
    for (const attempt of this.#live.values()) attempt.fail(cause.copy());
    this.#live.clear();
    this.#unanswered.clear();
    this.#outbox = [];
    this.#release();
    this.#onEnd();
  }
}

function pack(frame: SessionRequest["frame"]): Uint8Array {
  return toBinary(SessionRequestSchema, create(SessionRequestSchema, { frame }));
}
