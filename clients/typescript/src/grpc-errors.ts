// The client's errors from those of @grpc/grpc-js, and why no connection could be made, which only their texts say.

import { status } from "@grpc/grpc-js";
import { DeadlineExceeded, fromPackedStatus, fromStatus, invalid, RingError, Unavailable } from "./errors.js";

const DETAILS_KEY = "grpc-status-details-bin";
/** How texts begin when a call reached no server. */
const NO_CONNECTION = /^(?:\w+: )?No connection established|^Name resolution failed/;
const LAST_ERROR = /Last error: (.*?)(?:\. Resolution note:.*)?$/s;
/** gRPC's own text for a message that the server refused before the service saw it; comes without details. */
const TOO_LARGE = "SERVER: Received message larger than max";
/** Texts of a stream that was cut. */
const CUT = /^Received RST_STREAM|GOAWAY|Call ended without gRPC status|^Connection dropped/;
const REASONS: readonly (readonly [RegExp, string])[] = [
  [/ECONNREFUSED/, "Connection refused (ECONNREFUSED)"],
  [/ENOENT/, "No such file or directory (ENOENT)"],
  [/EHOSTUNREACH/, "No route to host (EHOSTUNREACH)"],
  [/ENETUNREACH/, "Network is unreachable (ENETUNREACH)"],
  [/^Name resolution failed|ENOTFOUND|ENODATA|EAI_AGAIN/, "the name has no address"],
  [/ETIMEDOUT|timed out/, "connection timed out"],
  [/wrong version number|EPROTO/i, "TLS handshake failed: the server does not use TLS"],
  [/does not match certificate|ERR_TLS_CERT_ALTNAME/, "TLS handshake failed: the server's certificate is for another name; serverName sets the expected one"],
  [
    /self.signed|unable to verify|unable to get|certificate has expired|issuer/i,
    "TLS handshake failed: the authorities in ca (default: the public ones) did not issue the server's certificate, or it has expired",
  ],
  [
    /ECONNRESET|socket hang up|disconnected before secure|Socket closed/i,
    "the server closed the connection: it may require TLS (tls or ca), or a client certificate (cert and key)",
  ],
];

/** The error of a call that reached no server. */
export function connectionError(reason: string): Unavailable {
  const error = new Unavailable(`no connection: ${reason}`);
  error.notConnected = reason;
  return error;
}

interface Failure {
  readonly code: number;
  readonly details: string;
  readonly metadata?: { get(key: string): (string | Buffer)[] };
}

/** The error for whatever a call of gRPC failed with. */
export function errorOf(failure: unknown): RingError {
  if (failure instanceof RingError) return failure;
  if (!isFailure(failure)) return new Unavailable(failure instanceof Error ? failure.message : String(failure));
  const { code, details, metadata } = failure;
  const packed = metadata?.get(DETAILS_KEY)[0];
  if (packed instanceof Uint8Array) return fromPackedStatus(packed);
  if (NO_CONNECTION.test(details)) return connectionError(reasonOf(details));
  if (details.startsWith(TOO_LARGE)) {
    const [size = "?", limit = "?"] = details.match(/\d+/g) ?? [];
    const error = invalid("message", `${size} bytes: expected at most ${limit}, the server's limit`);
    error.reason = "TOO_LARGE";
    return error;
  }
  if (code === status.DEADLINE_EXCEEDED) return new DeadlineExceeded("the timeout passed before the server answered");
  if (code === status.UNKNOWN || (code === status.INTERNAL && CUT.test(details))) {
    return new Unavailable(`the connection was lost: ${details}`);
  }
  return fromStatus({ code, message: details, details: [] });
}

function reasonOf(details: string): string {
  const last = LAST_ERROR.exec(details)?.[1] ?? details;
  return REASONS.find(([pattern]) => pattern.test(last))?.[1] ?? last;
}

function isFailure(failure: unknown): failure is Failure {
  return typeof failure === "object" && failure !== null && "code" in failure && "details" in failure;
}
