// The transport of Node: gRPC by @grpc/grpc-js.

import { type DescMethod, type DescMethodUnary, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import {
  type CallOptions as GrpcOptions,
  type ChannelOptions,
  Client as GrpcClient,
  type ClientDuplexStream,
  type ClientReadableStream,
  connectivityState,
  Metadata,
  type ServiceError,
} from "@grpc/grpc-js";
import { connectionError, errorOf } from "./grpc-errors.js";
import { Cancelled, DeadlineExceeded } from "./errors.js";
import { credentialsOf, type TlsOptions } from "./security.js";
import {
  type GenerateRequest,
  type GenerateResponse,
  InferenceService,
  type SessionResponse,
  SessionResponseSchema,
} from "./stubs/ringline/inference/v1/inference_pb.js";
import type { CallOptions, Connection, Duplex, Incoming } from "./transport.js";
import { onAbort } from "./waiting.js";

/** Of one attempt to connect: a stopped process accepts connections and never answers. */
const CONNECT_MS = 3000;

const CHANNEL_OPTIONS: ChannelOptions = {
  // A proxy in the environment is for the web: by default gRPC sends everything to it, loopback included.
  "grpc.enable_http_proxy": 0,
  // Otherwise clients of one address share a connection, and its HTTP/2 window, which one slow reader can fill.
  "grpc.use_local_subchannel_pool": 1,
  // Only code that knows what was delivered decides on retries, never the transport.
  "grpc.enable_retries": 0,
  // A prompt's ids come in one message, which may exceed the default of 4 MiB.
  "grpc.max_receive_message_length": 64 << 20,
  "grpc.max_send_message_length": -1,
  // Notice within 6 s a peer that vanished without closing, while calls are open.
  "grpc.keepalive_time_ms": 3000,
  "grpc.keepalive_timeout_ms": 3000,
  // Reconnect quickly to a server that restarts; the defaults are 1 s and 120 s.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1000,
  // A name may have several addresses: connect to all of them, to spread calls and to have another when one is lost.
  "grpc.service_config": '{"loadBalancingConfig":[{"round_robin":{}}]}',
  // Resolve the name again soon after a server is lost: its successor may have another address. The default is 30 s.
  "grpc.dns_min_time_between_resolutions_ms": 2000,
};

/** A connection to one address. */
export class GrpcConnection implements Connection {
  readonly #client: GrpcClient;
  readonly #calls = new Set<{ cancel(): void }>();
  readonly #closing = new AbortController();

  constructor(address: string, options: TlsOptions & { readonly proxy?: boolean | undefined }) {
    const { serverName, proxy } = options;
    this.#client = new GrpcClient(address, credentialsOf(options), {
      ...CHANNEL_OPTIONS,
      ...(proxy ? { "grpc.enable_http_proxy": 1 } : {}),
      ...(serverName === undefined
        ? {}
        : { "grpc.ssl_target_name_override": serverName, "grpc.default_authority": serverName }),
    });
  }

  generate(request: GenerateRequest, options: CallOptions): Incoming<GenerateResponse> {
    const { path, pack, unpack } = coded(InferenceService.method.generate);
    return new Reading(this, options, (metadata, grpc) =>
      this.#client.makeServerStreamRequest(path, pack, unpack, request, metadata, grpc),
    );
  }

  session(options: CallOptions): Duplex {
    const { path } = coded(InferenceService.method.session);
    const unpack = (bytes: Buffer) => fromBinary(SessionResponseSchema, bytes);
    return new Writing(this, options, (metadata, grpc) =>
      this.#client.makeBidiStreamRequest(path, asBuffer, unpack, metadata, grpc),
    );
  }

  async unary<Method extends DescMethodUnary>(
    method: Method,
    request: MessageShape<Method["input"]>,
    options: CallOptions,
  ): Promise<MessageShape<Method["output"]>> {
    const { path, pack, unpack } = coded(method);
    const grpc = grpcOptions(options);
    const { signal } = options;
    await this.ready(options);
    return new Promise((resolve, reject) => {
      const done = (error: ServiceError | null, answer?: MessageShape<Method["output"]>) => {
        forget();
        ignore();
        if (error !== null || answer === undefined) reject(errorOf(error));
        else resolve(answer);
      };
      const call = this.#client.makeUnaryRequest(path, pack, unpack, request, metadataOf(options), grpc, done);
      const forget = this.keep(call);
      const cancel = () => call.cancel();
      if (signal?.aborted) cancel();
      const ignore = signal === undefined ? () => undefined : onAbort(signal, cancel);
    });
  }

  /**
   * Settle when the connection stands, or when it cannot be made: then a call says why. Rejects once the call is
   * cancelled, its time has passed, or the connection is closed.
   */
  async ready({ timeoutMs = Infinity, signal }: Pick<CallOptions, "timeoutMs" | "signal">): Promise<void> {
    const end = Date.now() + Math.min(CONNECT_MS, timeoutMs);
    for (;;) {
      if (signal?.aborted || this.#closing.signal.aborted) throw new Cancelled("the call was cancelled");
      const state = this.#client.getChannel().getConnectivityState(true);
      if (state !== connectivityState.IDLE && state !== connectivityState.CONNECTING) return;
      if (Date.now() >= end) {
        if (timeoutMs < CONNECT_MS) throw new DeadlineExceeded("the timeout passed before the server was reached");
        throw connectionError("connection timed out");
      }
      await this.#changed(state, end, signal);
    }
  }

  /** Settle when the state is another, at `end`, or when nobody waits for it any more. */
  async #changed(state: connectivityState, end: number, signal: AbortSignal | undefined): Promise<void> {
    const signals = [this.#closing.signal, ...(signal === undefined ? [] : [signal])];
    let settle: () => void = () => undefined;
    const changed = new Promise<void>((resolve) => {
      settle = resolve;
    });
    const ignored = signals.map((each) => onAbort(each, settle));
    this.#client.getChannel().watchConnectivityState(state, end, settle);
    await changed;
    for (const ignore of ignored) ignore();
  }

  /** Have a call ended with the connection: gRPC would let it go on. Returns what forgets it. */
  keep(call: { cancel(): void }): () => void {
    this.#calls.add(call);
    return () => this.#calls.delete(call);
  }

  close(): void {
    this.#closing.abort();
    for (const call of this.#calls) call.cancel();
    this.#client.close();
  }
}

/** A stream of responses, whose call begins with the first `read`. */
class Reading<Response, Call extends ClientReadableStream<Response>> implements Incoming<Response> {
  #call: Call | undefined;
  #responses: AsyncIterator<Response> | undefined;
  readonly #cancelled = new AbortController();

  constructor(
    private readonly connection: GrpcConnection,
    private readonly options: CallOptions,
    private readonly begin: (metadata: Metadata, options: GrpcOptions) => Call,
  ) {}

  async read(): Promise<Response | undefined> {
    try {
      if (this.#responses === undefined) this.#responses = (await this.started())[Symbol.asyncIterator]();
      const { done, value } = await this.#responses.next();
      return done ? undefined : value;
    } catch (error) {
      throw errorOf(error);
    }
  }

  cancel(): void {
    this.#cancelled.abort();
    this.#call?.cancel();
  }

  protected async started(): Promise<Call> {
    if (this.#call !== undefined) return this.#call;
    const grpc = grpcOptions(this.options);
    await this.connection.ready({ timeoutMs: this.options.timeoutMs, signal: this.#cancelled.signal });
    if (this.#cancelled.signal.aborted) throw new Cancelled("the call was cancelled");
    const call = this.begin(metadataOf(this.options), grpc);
    call.on("error", () => undefined); // whoever reads gets it; nobody does after `cancel`
    call.on("status", this.connection.keep(call));
    this.#call = call;
    return call;
  }
}

class Writing extends Reading<SessionResponse, ClientDuplexStream<Uint8Array, SessionResponse>> implements Duplex {
  async write(packed: Uint8Array): Promise<void> {
    const call = await this.started();
    await new Promise<void>((resolve, reject) => {
      call.write(packed, (error: Error | null | undefined) => (error ? reject(errorOf(error)) : resolve()));
    });
  }

  end(): void {
    void this.started().then((call) => call.end());
  }
}

/** The path of a method, and its messages as bytes. */
function coded<Method extends DescMethod>(method: Method) {
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    pack: (message: MessageShape<Method["input"]>) => asBuffer(toBinary(method.input, message)),
    unpack: (bytes: Buffer) => fromBinary(method.output, bytes) as MessageShape<Method["output"]>,
  };
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function grpcOptions({ timeoutMs }: CallOptions): GrpcOptions & { deadline?: number } {
  return timeoutMs === undefined ? {} : { deadline: Date.now() + timeoutMs };
}

function metadataOf({ metadata }: CallOptions): Metadata {
  const pairs = new Metadata();
  for (const [key, value] of Object.entries(metadata)) pairs.set(key, value);
  return pairs;
}

