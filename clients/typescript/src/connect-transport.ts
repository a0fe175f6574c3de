// The transport of browsers: Connect, through the HTTP gateway.

import { create, type DescMethodUnary, type MessageShape } from "@bufbuild/protobuf";
import { AnySchema } from "@bufbuild/protobuf/wkt";
import { ConnectError, createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { Cancelled, CODES, fromStatus, RingError, Unavailable } from "./errors.js";
import { type GenerateRequest, type GenerateResponse, InferenceService } from "./stubs/ringline/inference/v1/inference_pb.js";
import type { CallOptions, Connection, Incoming } from "./transport.js";

/** A gateway, by its URL. */
export class ConnectConnection implements Connection {
  readonly #transport: Transport;
  readonly #closing = new AbortController();

  constructor(baseUrl: string) {
    this.#transport = createConnectTransport({ baseUrl, useBinaryFormat: true });
  }

  generate(request: GenerateRequest, options: CallOptions): Incoming<GenerateResponse> {
    const abort = this.#abort(options.signal);
    const end = () => abort.abort(); // also of a call that ended: then no signal keeps its listener
    const client = createClient(InferenceService, this.#transport);
    const responses = client.generate(request, { ...callOptions(options), signal: abort.signal })[Symbol.asyncIterator]();
    let answered = false;
    return {
      read: async () => {
        try {
          const { done, value } = await responses.next();
          answered = true;
          if (done) end();
          return done ? undefined : value;
        } catch (error) {
          end();
          throw errorOf(error, answered);
        }
      },
      cancel: end,
    };
  }

  async unary<Method extends DescMethodUnary>(
    method: Method,
    request: MessageShape<Method["input"]>,
    options: CallOptions,
  ): Promise<MessageShape<Method["output"]>> {
    const { timeoutMs, headers } = callOptions(options);
    const abort = this.#abort(options.signal);
    try {
      const { message } = await this.#transport.unary(method, abort.signal, timeoutMs, headers, request as never);
      return message as MessageShape<Method["output"]>;
    } catch (error) {
      throw errorOf(error, false);
    } finally {
      abort.abort(); // neither signal keeps the call's listener
    }
  }

  close(): void {
    this.#closing.abort();
  }

  /** Aborted when the client is closed, or the caller's signal is. */
  #abort(signal: AbortSignal | undefined): AbortController {
    const abort = new AbortController();
    const end = () => abort.abort();
    for (const each of [this.#closing.signal, signal]) {
      if (each?.aborted) end();
      each?.addEventListener("abort", end, { signal: abort.signal });
    }
    return abort;
  }
}

function callOptions({ timeoutMs, metadata }: CallOptions): { timeoutMs?: number; headers: Record<string, string> } {
  return { ...(timeoutMs === undefined ? {} : { timeoutMs: Math.ceil(timeoutMs) }), headers: { ...metadata } };
}

/** The error for whatever a call of Connect failed with. `answered`: the server had begun to answer. */
function errorOf(failure: unknown, answered: boolean): RingError {
  if (failure instanceof RingError) return failure;
  const { code, rawMessage, details, cause } = ConnectError.from(failure);
  if (cause instanceof DOMException && cause.name === "AbortError") return new Cancelled("the call was cancelled");
  const known = details.flatMap((detail) =>
    "type" in detail ? [create(AnySchema, { typeUrl: `type.googleapis.com/${detail.type}`, value: detail.value })] : [],
  );
  if (cause instanceof TypeError || (known.length === 0 && CODES[code] === "UNKNOWN")) {
    const error = new Unavailable(`the connection was lost: ${rawMessage}`, { cause: failure });
    if (!answered) error.notConnected = rawMessage; // `fetch` says no more
    return error;
  }
  return fromStatus({ code, message: rawMessage, details: known });
}
