// Reads the responses of one request: checks the protocol, turns messages into events, and keeps what was delivered.
// One reader serves all attempts at a request, so a resume loses nothing delivered before.

import { clone, create, type DescMessage, equals, type MessageShape } from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";
import { admittedFrom, failureOf, finishReasonOf, logprobsFrom, partFrom, usageFrom, adapterFrom } from "./convert.js";
import {
  Cancelled,
  DeadlineExceeded,
  fromStatus,
  InvalidRequest,
  Overloaded,
  PermissionDenied,
  ProtocolError,
  type RingError,
  Truncated,
  Unavailable,
} from "./errors.js";
import {
  type Admitted,
  Choice,
  type Event,
  type Finished,
  Generation,
  type Part,
  type Reader,
  ToolCall,
  type ToolCallPiece,
  type TokenLogprob,
  type Usage,
} from "./results.js";
import {
  type Admitted as AdmittedMessage,
  type ChoiceFinished,
  type Delta as DeltaMessage,
  type GenerateResponse,
  type PromptLogprobs as PromptLogprobsMessage,
  type RequestFinished,
  type Resume,
  ResumeSchema,
  SamplingParamsSchema,
  type Started as StartedMessage,
  StoppingParamsSchema,
} from "./stubs/ringline/inference/v1/inference_pb.js";
import { AdapterSchema } from "./stubs/ringline/types/v1/adapter_pb.js";
import { ConstraintSchema } from "./stubs/ringline/types/v1/constraint_pb.js";
import type { Part as PartMessage } from "./stubs/ringline/types/v1/part_pb.js";
import { BeamSearchSchema, ResumedChoiceSchema } from "./stubs/ringline/types/v1/sampling_pb.js";

/** Errors that end a request for good. Any other end of a stream means a lost connection or server. */
const FINAL = [Cancelled, DeadlineExceeded, InvalidRequest, PermissionDenied, ProtocolError];

function isFinal(error: RingError): boolean {
  return FINAL.some((kind) => error instanceof kind);
}

/** Everything delivered of one choice. */
class ChoiceLog {
  text = "";
  readonly tokenIds: number[] = [];
  logprobs: TokenLogprob[] | undefined;
  content = "";
  reasoning = "";
  readonly calls: ToolCallPiece[][] = [];
  finished: Finished | undefined;
  #last: Part["type"] | undefined;

  /** Keep a piece; false for a tool call's piece that neither continues a known call nor begins the next one. */
  add(part: Part): boolean {
    if (part.type === "content") this.content = this.#joined(this.content, part);
    else if (part.type === "reasoning") this.reasoning = this.#joined(this.reasoning, part);
    else if (part.index < this.calls.length) this.calls[part.index]?.push(part);
    else if (part.index === this.calls.length && part.name !== "") this.calls.push([part]);
    else return false;
    this.#last = part.type;
    return true;
  }

  get toolCalls(): ToolCall[] {
    return this.calls.map((pieces) => {
      const text = pieces.map((piece) => piece.arguments).join("");
      return new ToolCall(pieces[0]?.id ?? "", pieces[0]?.name ?? "", text);
    });
  }

  /** A line break goes between runs that another kind of part separates: the text would run together. */
  #joined(before: string, part: Part & { text: string }): string {
    const apart = this.#last !== part.type && /\S$/.test(before) && /^\S/.test(part.text);
    return before + (apart ? "\n" : "") + part.text;
  }
}

/** What the current attempt's server has sent. */
interface Progress {
  admitted: boolean;
  /** The choices that this attempt computes. */
  readonly choices: Set<number>;
  /** Those that have not ended. */
  readonly unfinished: Set<number>;
  /** Number of prompt log probabilities received. */
  promptLogprobs: number;
  /** The error of a choice that ended Unavailable or that a full engine refused: another attempt may continue it. */
  notFinal: RingError | undefined;
}

function progressOf(choices: Iterable<number>): Progress {
  const all = [...choices];
  return {
    admitted: false,
    choices: new Set(all),
    unfinished: new Set(all),
    promptLogprobs: 0,
    notFinal: undefined,
  };
}

/**
 * A state machine over: Admitted, deltas, the end of each choice, the end of the request; or one refusal. A later attempt
 * repeats this for the unfinished choices. Unknown events are skipped.
 */
export class ResponseReader<T = unknown> {
  admitted: Admitted | undefined;
  /** The first server's message, the source of `admitted`. */
  admittedMessage: AdmittedMessage | undefined;
  /** The error of the first choice that failed; known when `done`. */
  failure: RingError | undefined;
  /** Number of resumes. */
  resumed = 0;
  /** The error that ended the last admitted attempt. */
  cut: RingError | undefined;
  /** The request's token counts; undefined until it has ended. */
  usage: Usage | undefined;
  readonly #hidesPrompt: boolean;
  readonly #readJson: Reader<T> | undefined;
  #logs: ChoiceLog[] = [];
  /** From the last Prefill. */
  #cachedTokens = 0;
  #started: StartedMessage | undefined;
  #promptLogprobs: TokenLogprob[] | undefined;
  #progress = progressOf([]);

  /** `hidesPrompt`: leave the prompt's ids out of `admitted`, because the caller did not ask for them. */
  constructor(hidesPrompt: boolean, readJson: Reader<T> | undefined) {
    this.#hidesPrompt = hidesPrompt;
    this.#readJson = readJson;
  }

  /** Whether the request, and so every choice, has ended. */
  get done(): boolean {
    return this.usage !== undefined;
  }

  /** Whether all entries have arrived; meaningless if the request asked for none. */
  get hasPromptLogprobs(): boolean {
    return (this.#promptLogprobs?.length ?? 0) >= (this.admitted === undefined ? 0 : this.admitted.promptTokens - 1);
  }

  /** Whether anything was delivered that the rest of the answer must fit. */
  get hasOutput(): boolean {
    const began = this.#logs.some((log) => log.tokenIds.length > 0 || log.finished !== undefined);
    return began || (this.#promptLogprobs?.length ?? 0) > 0;
  }

  /** The unfinished choices with their delivered ids, and the model and numerics that computed them. */
  resume(): Resume {
    const choices = this.#logs.flatMap(({ finished, tokenIds }, choice) =>
      finished === undefined ? [create(ResumedChoiceSchema, { choice, tokenIds: [...tokenIds] })] : [],
    );
    return create(ResumeSchema, {
      choices,
      modelDigest: this.#started?.modelDigest || (this.admittedMessage?.modelDigest ?? ""),
      numerics: this.#started?.numerics ?? "",
      adapterDigest: this.admittedMessage?.adapter?.digest ?? "",
    });
  }

  /** Start an attempt at `choices`; none for the first attempt, whose choices Admitted gives. */
  begin(choices: Iterable<number>): void {
    this.#progress = progressOf(choices);
    this.usage = undefined;
  }

  /**
   * The response's events for the caller. Throws a refusal's error, ProtocolError for a breach of the contract, and, at the
   * end of the request, the error of a choice that another attempt may continue.
   */
  read({ event }: GenerateResponse): Event[] {
    switch (event.case) {
      case "delta":
        return [this.#readDelta(event.value)];
      case "choiceFinished":
        return this.#readChoiceFinished(event.value);
      case "requestFinished":
        this.#readRequestFinished(event.value);
        return [];
      case "admitted":
        return [this.#readAdmitted(event.value)];
      case "refused":
        throw this.#refusal(fromStatus(event.value.status ?? { code: 2, message: "", details: [] }));
      case "prefill": {
        this.#expectLive(event.case);
        const { computedTokens, cachedTokens } = event.value;
        this.#cachedTokens = cachedTokens;
        return [{ type: "prefill", computedTokens, cachedTokens }];
      }
      case "promptLogprobs":
        this.#expectLive(event.case);
        return this.#readPromptLogprobs(event.value);
      case "started": {
        this.#expectLive(event.case);
        this.#started = event.value;
        const { modelDigest, numerics, identical, reason } = event.value;
        return [{ type: "started", modelDigest, numerics, identical, reason }];
      }
      default:
        return []; // an event of a later version of the contract
    }
  }

  /** The whole answer; throws `failure` if a choice failed. */
  generation(): Generation<T> {
    if (this.failure !== undefined) throw this.failure;
    if (this.usage === undefined || this.admitted === undefined) throw new Error("the request has not ended");
    return new Generation(this.#choices(), this.usage, this.admitted, this.#promptLogprobs, this.resumed);
  }

  /** The error of a lost stream. Undefined if every choice had ended: then the request counts as done. */
  lost(cause: RingError): RingError | undefined {
    const isWhole = this.#logs.length > 0 && this.#logs.every((log) => log.finished !== undefined);
    if (isFinal(cause) || !isWhole || this.admitted === undefined) return this.ended(cause);
    const every = this.#logs.keys();
    this.usage = {
      ...usageFrom(undefined),
      promptTokens: this.admitted.promptTokens,
      cachedTokens: this.#cachedTokens,
      completionTokens: this.#numTokens(every),
      reasoningTokens: this.#reasoningTokens(this.#logs.keys()),
    };
    this.#noteFailure();
    return undefined;
  }

  /** The error of a stream that ended before the request did, because of `cause`. */
  ended(cause: RingError): RingError {
    if (isFinal(cause) || !this.#progress.admitted) return this.#withPartial(cause);
    const why = `the stream ended before the request did: ${cause.message}`;
    return this.#cut(new Truncated(why, { cause }));
  }

  #cut(error: RingError): RingError {
    this.cut = error;
    return this.#withPartial(error);
  }

  #readAdmitted(message: AdmittedMessage): Event {
    if (this.#progress.admitted) throw this.#breach("admitted was sent twice");
    this.#progress.admitted = true;
    if (this.admittedMessage !== undefined) return this.#readResumed(this.admittedMessage, message);
    this.admittedMessage = message;
    const n = Math.max(1, message.sampling?.n ?? 1);
    this.#logs = Array.from({ length: n }, () => new ChoiceLog());
    this.#progress = { ...progressOf(this.#logs.keys()), admitted: true };
    if (message.output?.promptLogprobs !== undefined) this.#promptLogprobs = [];
    this.admitted = admittedFrom(message, this.#hidesPrompt);
    return this.admitted;
  }

  #readResumed(first: AdmittedMessage, message: AdmittedMessage): Event {
    const agreed: Record<string, boolean> = {
      promptTokens: message.promptTokens === first.promptTokens,
      sampling: agree(SamplingParamsSchema, first.sampling, message.sampling),
      stopping: agree(StoppingParamsSchema, first.stopping, message.stopping),
      beamSearch: agree(BeamSearchSchema, first.beamSearch, message.beamSearch),
      adapter: !this.hasOutput || same(AdapterSchema, first.adapter, message.adapter),
      constraint:
        (first.constraint === undefined) === (message.constraint === undefined) &&
        agree(ConstraintSchema, first.constraint, message.constraint),
    };
    const other = Object.keys(agreed).find((name) => !agreed[name]);
    if (other !== undefined) throw this.#breach(`the resumed request has another ${other} than before`);
    if (this.admitted !== undefined && message.adapter !== undefined) {
      // It may have been replaced before any output.
      first.adapter = clone(AdapterSchema, message.adapter);
      this.admitted = { ...this.admitted, adapter: adapterFrom(message.adapter) };
    }
    this.resumed++;
    return { type: "resumed", reason: this.cut?.message ?? "" };
  }

  #readPromptLogprobs(message: PromptLogprobsMessage): Event[] {
    const known = (this.#promptLogprobs ??= []);
    const offset = this.#progress.promptLogprobs;
    if (message.offset !== offset) {
      throw this.#breach(`prompt log probabilities from ${message.offset} instead of ${offset}`);
    }
    const part = message.logprobs === undefined ? [] : logprobsFrom(message.logprobs);
    this.#progress.promptLogprobs += part.length;
    const before = known.length;
    const fresh = part.slice(Math.max(0, before - offset));
    if (before > offset && fresh.length === 0) return []; // received before the resume
    known.push(...fresh);
    return [{ type: "promptLogprobs", offset: before, logprobs: fresh }];
  }

  #readDelta(message: DeltaMessage): Event {
    const { choice, firstPosition, text, tokenIds } = message;
    const log = this.#log(choice, "delta");
    const position = log.tokenIds.length;
    if (firstPosition !== position) {
      throw this.#breach(`a delta of choice ${choice} at position ${firstPosition} instead of ${position}`);
    }
    let logprobs: TokenLogprob[] | undefined;
    if (message.logprobs !== undefined) {
      logprobs = logprobsFrom(message.logprobs);
      if (logprobs.length !== tokenIds.length) {
        throw this.#breach(`log probabilities of ${logprobs.length} tokens with ${tokenIds.length} tokens`);
      }
      append((log.logprobs ??= []), logprobs);
    }
    log.text += text;
    append(log.tokenIds, tokenIds);
    return { type: "delta", choice, position, text, tokenIds, logprobs, parts: this.#readParts(log, message.parts) };
  }

  #readParts(log: ChoiceLog, messages: readonly PartMessage[]): Part[] {
    const parts = messages.map(partFrom).filter((part) => part !== undefined);
    if (!parts.every((part) => log.add(part))) throw this.#breach("a piece of a tool call that did not begin");
    return parts;
  }

  #readChoiceFinished(message: ChoiceFinished): Event[] {
    const { choice, stop, reasoningTokens, beamScore } = message;
    const log = this.#log(choice, "end");
    this.#progress.unfinished.delete(choice);
    const reason = finishReasonOf(message);
    const error = failureOf(reason, message);
    if (error instanceof Unavailable || error instanceof Overloaded) {
      this.#progress.notFinal ??= error;
      return []; // the resumed choice sends the last parts again
    }
    log.finished = { type: "finished", choice, reason, stop: stop.value, error, reasoningTokens, beamScore };
    const parts = this.#readParts(log, message.parts);
    if (parts.length === 0) return [log.finished];
    const position = log.tokenIds.length;
    return [{ type: "delta", choice, position, text: "", tokenIds: [], logprobs: undefined, parts }, log.finished];
  }

  #readRequestFinished(message: RequestFinished): void {
    const { admitted, unfinished, choices, notFinal } = this.#progress;
    if (!admitted) throw this.#breach("the end of a request before admitted");
    if (unfinished.size > 0) {
      throw this.#breach(`the end of a request before that of its choices ${[...unfinished].join(", ")}`);
    }
    const counted = message.usage?.completionTokens ?? 0;
    const delivered = this.#numTokens(choices);
    if (counted !== delivered) throw this.#breach(`${counted} completion tokens counted, ${delivered} delivered`);
    const usage = usageFrom(message.usage); // this server counted its own choices only
    const others = [...this.#logs.keys()].filter((choice) => !choices.has(choice));
    this.usage = {
      ...usage,
      completionTokens: this.#numTokens(this.#logs.keys()),
      reasoningTokens: usage.reasoningTokens + this.#reasoningTokens(others),
    };
    if (notFinal !== undefined) throw this.#cut(notFinal);
    this.#noteFailure();
  }

  #noteFailure(): void {
    const error = this.#logs.find((log) => log.finished?.error !== undefined)?.finished?.error;
    if (error !== undefined) this.failure = this.#withPartial(error);
  }

  /** The error of a refusal; a breach of protocol once the attempt was admitted. */
  #refusal(error: RingError): RingError {
    if (this.#progress.admitted) return this.#breach(`a refusal after admitted (${error.message})`);
    return this.#withPartial(error);
  }

  #expectLive(kind: string): void {
    if (!this.#progress.admitted || this.done) throw this.#breach(`${kind} before admitted, or after the request's end`);
  }

  #log(choice: number, what: string): ChoiceLog {
    if (!this.#progress.admitted) throw this.#breach(`a ${what} before admitted`);
    const log = this.#logs[choice];
    if (log === undefined) throw this.#breach(`a ${what} of choice ${choice}, of ${this.#logs.length}`);
    if (!this.#progress.unfinished.has(choice)) throw this.#breach(`a ${what} of choice ${choice} after its end`);
    return log;
  }

  #numTokens(choices: Iterable<number>): number {
    return [...choices].reduce((sum, choice) => sum + (this.#logs[choice]?.tokenIds.length ?? 0), 0);
  }

  /** The sum over the choices that have ended. */
  #reasoningTokens(choices: Iterable<number>): number {
    return [...choices].reduce((sum, choice) => sum + (this.#logs[choice]?.finished?.reasoningTokens ?? 0), 0);
  }

  #choices(): Choice<T>[] {
    const parsed = this.admittedMessage?.output?.parse !== undefined;
    return this.#logs.map((log, index) => {
      const { text, tokenIds, logprobs, finished, toolCalls } = log;
      const fields = {
        index,
        text,
        tokenIds: [...tokenIds],
        finishReason: finished?.reason,
        stop: finished?.stop,
        logprobs: logprobs && [...logprobs],
        content: parsed ? log.content : text,
        reasoning: log.reasoning || undefined,
        toolCalls,
        beamScore: finished?.beamScore,
      };
      return new Choice(fields, this.#readJson);
    });
  }

  #breach(what: string): RingError {
    return this.#withPartial(new ProtocolError(`the server broke the protocol: ${what}`));
  }

  #withPartial(error: RingError): RingError {
    if (this.admitted !== undefined) {
      error.partial = { choices: this.#choices(), request: this.admitted, usage: this.usage };
    }
    return error;
  }
}

/** A spread of a long list would not fit on the stack. */
function append<Item>(target: Item[], items: readonly Item[]): void {
  for (const item of items) target.push(item);
}

function same<Schema extends DescMessage>(
  schema: Schema,
  first: MessageShape<Schema> | undefined,
  again: MessageShape<Schema> | undefined,
): boolean {
  if (first === undefined || again === undefined) return first === again;
  return equals(schema, first, again);
}

/** Whether the fields set in both are equal: a server of another release may resolve more fields. */
function agree<Schema extends DescMessage>(
  schema: Schema,
  first: MessageShape<Schema> | undefined,
  again: MessageShape<Schema> | undefined,
): boolean {
  if (first === undefined || again === undefined) return true;
  const [one, other] = [first, again].map((message) => reflect(schema, clone(schema, message)));
  if (one === undefined || other === undefined) return true;
  for (const field of schema.fields) {
    const hasPresence = field.oneof !== undefined || field.fieldKind === "message" || isOptional(field);
    if (hasPresence && !(one.isSet(field) && other.isSet(field))) {
      one.clear(field);
      other.clear(field);
    }
  }
  return equals(schema, one.message as MessageShape<Schema>, other.message as MessageShape<Schema>);
}

const EXPLICIT = 1;

function isOptional(field: { readonly presence: number }): boolean {
  return field.presence === EXPLICIT;
}

