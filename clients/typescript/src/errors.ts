// The errors that the client raises, and their construction from the contract's statuses.
//
// RingError
// ├── InvalidRequest      the request is invalid (names the field)
// ├── NotFound            no such model
// ├── FailedPrecondition  the server is not in a state to do this
// ├── PermissionDenied    the caller is unknown to the server, or not allowed
// ├── Overloaded          the server has no room (says when to retry)
// ├── Unavailable         the server cannot be reached or takes no new requests; a retry may help
// │   └── Truncated       the stream ended before the request did
// ├── DeadlineExceeded    the timeout passed
// ├── Cancelled           the request was cancelled
// ├── ServerError         the server failed
// └── ProtocolError       the server broke the contract

import { fromBinary } from "@bufbuild/protobuf";
import { readDetails } from "./status-details.js";
import { StatusSchema, type Status } from "./stubs/google/rpc/status_pb.js";
import type { Partial } from "./results.js";

/** gRPC's canonical codes by number, by their names in the contract. */
export const CODES = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
] as const;

/** Name of a canonical gRPC code. */
export type Code = (typeof CODES)[number];

/** Base of the client's errors. Its message is one sentence for people. */
export class RingError extends Error {
  // By hand, so that programs that minify keep it.
  override name = "RingError";
  /** The canonical gRPC code. */
  code: Code = "UNKNOWN";
  /** What was delivered, if the generation was admitted. */
  partial: Partial | undefined;
  /** A name of the contract's `ErrorReason`, without its prefix; undefined if the server sent none. */
  reason: string | undefined;

  /** The same error anew, for another request that it ends. */
  copy(): this {
    const Kind = this.constructor as new (message: string, options?: ErrorOptions) => this;
    const other = new Kind(this.message, { cause: this.cause });
    return Object.assign(other, this, { partial: undefined });
  }
}

/** The request is invalid. */
export class InvalidRequest extends RingError {
  override name = "InvalidRequest";
  override code: Code = "INVALID_ARGUMENT";
  /** The invalid field, if known. */
  field: string | undefined;
}

/** No such model. */
export class NotFound extends RingError {
  override name = "NotFound";
  override code: Code = "NOT_FOUND";
}

/** The server is not in a state to do this. */
export class FailedPrecondition extends RingError {
  override name = "FailedPrecondition";
  override code: Code = "FAILED_PRECONDITION";
}

/** The caller is unknown to the server, or not allowed to do this. */
export class PermissionDenied extends RingError {
  override name = "PermissionDenied";
  override code: Code = "PERMISSION_DENIED";
}

/** The server has no room for the request. */
export class Overloaded extends RingError {
  override name = "Overloaded";
  override code: Code = "RESOURCE_EXHAUSTED";
  /** Milliseconds after which the server suggests retrying. */
  retryAfterMs: number | undefined;
}

/** The server cannot be reached or takes no new requests. */
export class Unavailable extends RingError {
  override name = "Unavailable";
  override code: Code = "UNAVAILABLE";
  /** Set if the client has never reached a server: why each address could not be connected to. */
  unreached: Readonly<Record<string, string>> | undefined;
  /** Why no connection could be made; undefined if the server was reached, or may have been. @internal */
  notConnected: string | undefined;
}

/** The stream ended before the request did: the delivered answer is incomplete. */
export class Truncated extends Unavailable {
  override name = "Truncated";
}

/** The timeout passed. */
export class DeadlineExceeded extends RingError {
  override name = "DeadlineExceeded";
  override code: Code = "DEADLINE_EXCEEDED";
}

/** The request was cancelled. If an AbortSignal did it, `cause` is the signal's reason. */
export class Cancelled extends RingError {
  override name = "Cancelled";
  override code: Code = "CANCELLED";
}

/** The server failed. */
export class ServerError extends RingError {
  override name = "ServerError";
  override code: Code = "INTERNAL";
}

/** The server broke the contract; what was delivered cannot be trusted. */
export class ProtocolError extends RingError {
  override name = "ProtocolError";
  override code: Code = "INTERNAL";
}

/** An answer, or a tool call's arguments, cannot be read as JSON or do not fit the schema. The text remains available. */
export class ParseError extends Error {
  override name = "ParseError";
}

const KINDS: { readonly [code in Code]?: new (message: string) => RingError } = {
  INVALID_ARGUMENT: InvalidRequest,
  OUT_OF_RANGE: InvalidRequest,
  NOT_FOUND: NotFound,
  FAILED_PRECONDITION: FailedPrecondition,
  ALREADY_EXISTS: FailedPrecondition,
  UNAUTHENTICATED: PermissionDenied,
  PERMISSION_DENIED: PermissionDenied,
  RESOURCE_EXHAUSTED: Overloaded,
  UNAVAILABLE: Unavailable,
  DEADLINE_EXCEEDED: DeadlineExceeded,
  CANCELLED: Cancelled,
};

/** The error for a field that the client itself finds invalid, before it sends anything. */
export function invalid(field: string, problem: string): InvalidRequest {
  return Object.assign(new InvalidRequest(`${field}: ${problem}`), { field });
}

/** The error for a `google.rpc.Status`. */
export function fromStatus(status: Pick<Status, "code" | "message" | "details">): RingError {
  const code = CODES[status.code] ?? "UNKNOWN";
  const error = new (KINDS[code] ?? ServerError)(status.message || code);
  const details = readDetails(status.details);
  error.code = code;
  error.reason = details.reason;
  if (error instanceof InvalidRequest) error.field = details.field;
  if (error instanceof Overloaded) error.retryAfterMs = details.retryAfterMs;
  return error;
}

/** The error for a status as bytes, as trailers have it. */
export function fromPackedStatus(packed: Uint8Array): RingError {
  return fromStatus(fromBinary(StatusSchema, packed));
}

/** A call that this side did not cancel: cancelled means that the server or a connection was lost. */
export function fromLostCall(error: RingError): RingError {
  if (!(error instanceof Cancelled)) return error;
  return new Unavailable(`the server, or a proxy before it, cancelled the call: ${error.message}`);
}
