// What the client needs of a way to reach servers: gRPC in Node, Connect in browsers.

import type { DescMethodUnary, MessageShape } from "@bufbuild/protobuf";
import type { GenerateRequest, GenerateResponse, SessionResponse } from "./stubs/ringline/inference/v1/inference_pb.js";

/** Of one call. */
export interface CallOptions {
  /** Milliseconds until the call ends with DeadlineExceeded. */
  readonly timeoutMs: number | undefined;
  /** Headers, in lower case, the bearer token included. */
  readonly metadata: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal | undefined;
}

/** A stream of responses. Each method may be called again only after its promise has settled. */
export interface Incoming<Response> {
  /** The next response; undefined after the last. Rejects with the RingError of a call that failed. */
  read(): Promise<Response | undefined>;
  /** End the call; `read` then rejects. */
  cancel(): void;
}

/** A stream in both directions. */
export interface Duplex extends Incoming<SessionResponse> {
  /** Send a packed `SessionRequest`; settles when there is room for the next. */
  write(packed: Uint8Array): Promise<void>;
  /** Nothing more will be sent. */
  end(): void;
}

/** A connection to one address, which connects when it is first used, and again when it is lost. */
export interface Connection {
  generate(request: GenerateRequest, options: CallOptions): Incoming<GenerateResponse>;
  /** Rejects with a RingError. */
  unary<Method extends DescMethodUnary>(
    method: Method,
    request: MessageShape<Method["input"]>,
    options: CallOptions,
  ): Promise<MessageShape<Method["output"]>>;
  /** Absent where streams in both directions are not possible: in browsers. */
  session?(options: CallOptions): Duplex;
  /** End every call. */
  close(): void;
}
