// The transport of browsers: Connect, through the HTTP gateway.

import type { DescMethodUnary, MessageShape } from "@bufbuild/protobuf";
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
    const client = createClient(InferenceService, this.#transport);
    const responses = client.generate(request, { ...callOptions(options), signal: abort.signal })[Symbol.asyncIterator]();
    return {
      read: async () => {
        try {
          const { done, value } = await responses.next();
          return done ? undefined : value;
        } catch (error) {
          throw errorOf(error);
        }
      },
      cancel: () => abort.abort(),
    };
  }

  async unary<Method extends DescMethodUnary>(
    method: Method,
    request: MessageShape<Method["input"]>,
    options: CallOptions,
  ): Promise<MessageShape<Method["output"]>> {
    const { timeoutMs, headers } = callOptions(options);
    const { signal } = this.#abort(options.signal);
    try {
      const { message } = await this.#transport.unary(method, signal, timeoutMs, headers, request as never);
      return message as MessageShape<Method["output"]>;
    } catch (error) {
      throw errorOf(error);
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

/** The error for whatever a call of Connect failed with. */
function errorOf(failure: unknown): RingError {
  if (failure instanceof RingError) return failure;
  const { code, rawMessage, details, cause } = ConnectError.from(failure);
  if (cause instanceof DOMException && cause.name === "AbortError") return new Cancelled("the call was cancelled");
  const any = details.flatMap((detail) =>
    "type" in detail ? [{ typeUrl: `type.googleapis.com/${detail.type}`, value: detail.value }] : [],
  );
  // `fetch` says no more than that it failed, whether or not the server was reached.
  if (cause instanceof TypeError || (any.length === 0 && CODES[code] === "UNKNOWN")) {
    return new Unavailable(`the gateway cannot be reached, or the connection was lost: ${rawMessage}`, { cause: failure });
  }
  return fromStatus({ code, message: rawMessage, details: any as never });
}
