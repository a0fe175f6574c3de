// One request over several attempts: the first request sent, what was delivered, and the request after a lost stream.
//
// An admitted request is never started over but resumed: any server continues it from the delivered ids, with the prompt
// ids, the seed and the options that the first server resolved, so the tokens are the same as without the interruption. A
// chat with pictures is sent again in place of prompt ids, with the digests of its pictures and of its prompt.

import { clone, create } from "@bufbuild/protobuf";
import { hasPictures } from "./content-parts.js";
import { DeadlineExceeded, type RingError, Truncated, Unavailable } from "./errors.js";
import { needed } from "./request.js";
import { ResponseReader } from "./response-reader.js";
import type { Event, Reader } from "./results.js";
import { ADAPTER_GONE, type Deadline, now, type RetryState } from "./retry.js";
import type { Server, ServerPool } from "./server-pool.js";
import {
  ChatSchema,
  type GenerateRequest,
  GenerateRequestSchema,
  type GenerateResponse,
  OutputParamsSchema,
  StoppingParamsSchema,
} from "./stubs/ringline/inference/v1/inference_pb.js";
import { TokenIdsSchema } from "./stubs/ringline/types/v1/sampling_pb.js";

/** A request, its delivered part, and its next attempt. */
export class RetryingRequest<T = unknown> {
  readonly reader: ResponseReader<T>;
  /** A server that had no engine for the request: the next attempt goes elsewhere if possible. */
  avoid: Server | undefined;
  readonly hasPictures: boolean;
  readonly #request: GenerateRequest;
  readonly #state: RetryState;
  /** When the first attempt began; perhaps long after this object was made. */
  #began: number | undefined;
  /** Whether the next attempt takes what its adapter's name stands for by then: the first one is gone. */
  #anyAdapter = false;

  constructor(
    request: GenerateRequest,
    state: RetryState,
    readonly deadline: Deadline,
    readJson: Reader<T> | undefined,
  ) {
    this.#request = request;
    this.#state = state;
    this.hasPictures = request.prompt.case === "chat" && hasPictures(request.prompt.value);
    const isText = request.prompt.case !== "tokenIds" && !this.hasPictures;
    const keepsPrompt = state.resumable && isText;
    const hidesPrompt = keepsPrompt && !request.output?.returnPromptTokenIds;
    if (keepsPrompt) {
      // A resume needs the token ids of a text or chat.
      request.output ??= create(OutputParamsSchema);
      request.output.returnPromptTokenIds = true;
    }
    this.reader = new ResponseReader(hidesPrompt, readJson);
  }

  /** The message that the next attempt sends. Throws DeadlineExceeded when no time is left. */
  nextRequest(): GenerateRequest {
    this.#began ??= now();
    const request = this.reader.admitted === undefined ? this.#request : this.#resumedRequest();
    this.reader.begin((request.resume?.choices ?? []).map(({ choice }) => choice));
    const left = this.remaining();
    if (left !== undefined) request.timeoutMs = BigInt(Math.ceil(left));
    return request;
  }

  /** Milliseconds left; undefined without a deadline. Throws DeadlineExceeded when it has passed. */
  remaining(): number | undefined {
    try {
      return this.deadline.remaining();
    } catch (passed) {
      throw passed instanceof DeadlineExceeded ? this.reader.ended(passed) : passed;
    }
  }

  /** Like `ResponseReader.read`; also tells the retry state of progress. */
  read(response: GenerateResponse): Event[] {
    const events = this.reader.read(response);
    for (const { type } of events) {
      if (type === "admitted" || type === "resumed") this.#state.admitted();
      else if (type === "delta" || type === "finished" || type === "promptLogprobs") this.#state.delivered();
    }
    return events;
  }

  /**
   * An attempt ended with `error`: eject a server that is lost or takes no requests. A server that ends an admitted
   * request as Unavailable has no engine for it: only this request avoids the server.
   *
   * Returns the error to throw if the request is not retried.
   */
  failedAt(server: Server, pool: ServerPool, error: RingError): RingError {
    if (error instanceof Unavailable && this.reader.done) {
      this.avoid = server;
      return error;
    }
    return pool.attemptFailed(server, error, this.#began ?? 0);
  }

  /** How long to wait after an attempt that ended with `error`; throws the error if there is no next attempt. */
  delay(error: RingError, anyAvailable: boolean): number {
    const hasPrompt = this.hasPictures || this.#promptIds().length > 0;
    if (error.partial !== undefined && !(this.#state.resumable && hasPrompt)) throw error;
    const anew = error.reason === ADAPTER_GONE && !this.reader.hasOutput;
    this.#anyAdapter ||= anew;
    try {
      const delay = this.#state.delay(error, anyAvailable, anew);
      this.reader.begin([]);
      return delay;
    } catch (final) {
      if (final instanceof DeadlineExceeded) throw this.reader.ended(final);
      const { cut } = this.reader;
      if (!(final instanceof Unavailable) || cut === undefined || final === cut) throw final;
      const ended = new Truncated(`${cut.message}; it could not be resumed: ${final.message}`, { cause: final });
      ended.reason = final.reason;
      throw this.reader.ended(ended);
    }
  }

  /** The prompt's ids as the server admitted them; empty if it did not return them. */
  #promptIds(): readonly number[] {
    const admitted = this.reader.admittedMessage;
    if (admitted === undefined) return [];
    const { prompt } = this.#request;
    if (prompt.case !== "tokenIds") return admitted.promptTokenIds;
    return prompt.value.ids.slice(-admitted.promptTokens); // truncatePromptTokens may shorten it
  }

  /** The request that continues after the delivered part. */
  #resumedRequest(): GenerateRequest {
    const admitted = this.reader.admittedMessage;
    if (admitted === undefined) throw new Error("the request was not admitted");
    const first = this.#request;
    const { sampling, stopping, output, constraint } = admitted;
    const request = create(GenerateRequestSchema, {
      requestId: first.requestId,
      model: admitted.model,
      adapter: admitted.adapter?.name ?? "",
      cacheSalt: first.cacheSalt,
      traceparent: first.traceparent,
      requires: [...first.requires],
      resume: this.reader.resume(),
      ...(sampling && { sampling }),
      ...(first.beamSearch && { beamSearch: first.beamSearch }),
      ...(constraint && { constraint }), // includes what tools and toolChoice demanded
      ...(first.speculation === undefined ? {} : { speculation: first.speculation }),
      ...(first.priority === undefined ? {} : { priority: first.priority }),
    });
    request.stopping = stopping === undefined ? create(StoppingParamsSchema) : clone(StoppingParamsSchema, stopping);
    request.output = output === undefined ? create(OutputParamsSchema) : clone(OutputParamsSchema, output);
    if (request.resume !== undefined && this.#anyAdapter && !this.reader.hasOutput) request.resume.adapterDigest = "";
    if (output?.parse !== undefined && stopping?.stopInReasoning === undefined) {
      request.stopping.stopInReasoning = true; // a server that does not know the field applies stops everywhere
    }
    request.requires.push(...needed(request).filter((name) => !request.requires.includes(name)));
    this.#setPrompt(request);
    request.output.returnPromptTokenIds = false;
    if (this.reader.hasPromptLogprobs) delete request.output.promptLogprobs;
    return request;
  }

  /** The prompt's ids; of a chat with pictures, the chat, which is prepared anew and compared. */
  #setPrompt(request: GenerateRequest): void {
    const first = this.#request;
    const admitted = this.reader.admittedMessage;
    if (this.hasPictures && first.prompt.case === "chat") {
      request.prompt = { case: "chat", value: clone(ChatSchema, first.prompt.value) };
      if (first.addSpecialTokens !== undefined) request.addSpecialTokens = first.addSpecialTokens;
      if (request.resume !== undefined && admitted !== undefined) {
        request.resume.mediaDigests = [...admitted.mediaDigests];
        request.resume.promptDigest = admitted.promptDigest;
      }
    } else {
      request.prompt = { case: "tokenIds", value: create(TokenIdsSchema, { ids: [...this.#promptIds()] }) };
    }
  }
}
