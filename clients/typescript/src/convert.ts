// From messages of the contract to what the client gives back.

import { type DescMessage, isFieldSet, type Message as ProtoMessage } from "@bufbuild/protobuf";
import { Cancelled, DeadlineExceeded, fromStatus, ProtocolError, type RingError, ServerError } from "./errors.js";
import type { BeamSearch, Options } from "./options.js";
import type {
  Adapter,
  Admitted,
  FinishReason,
  ListedAdapter,
  Model,
  Part,
  Pooling,
  Tokenization,
  TokenLogprob,
  Usage,
} from "./results.js";
import {
  type Admitted as AdmittedMessage,
  type ChoiceFinished,
  type ListAdaptersResponse,
  type ListModelsResponse,
  OutputParamsSchema,
  SamplingParamsSchema,
  StoppingParamsSchema,
  type TokenizeResponse,
  type Usage as UsageMessage,
} from "./stubs/ringline/inference/v1/inference_pb.js";
import type { Adapter as AdapterMessage } from "./stubs/ringline/types/v1/adapter_pb.js";
import type { Constraint } from "./stubs/ringline/types/v1/constraint_pb.js";
import { FinishReason as Finish, type Logprobs } from "./stubs/ringline/types/v1/output_pb.js";
import { ParseParamsSchema, type Part as PartMessage } from "./stubs/ringline/types/v1/part_pb.js";
import { PairForm, type PoolingFacts, PoolingTask } from "./stubs/ringline/types/v1/pooling_pb.js";
import {
  type BeamSearch as BeamSearchMessage,
  BeamSearch_EarlyStopping,
  NoRepeatNgramSchema,
} from "./stubs/ringline/types/v1/sampling_pb.js";

const REASONS: { readonly [reason: number]: FinishReason } = {
  [Finish.STOP]: "stop",
  [Finish.LENGTH]: "length",
  [Finish.CANCELLED]: "cancelled",
  [Finish.DEADLINE]: "deadline",
  [Finish.ERROR]: "error",
};
const TASKS: { readonly [task: number]: string } = {
  [PoolingTask.EMBED]: "embed",
  [PoolingTask.TOKEN_EMBED]: "token_embed",
  [PoolingTask.CLASSIFY]: "classify",
  [PoolingTask.TOKEN_CLASSIFY]: "token_classify",
};

type Loose = Record<string, unknown>;

/** The request as admitted; scalars absent from the message are absent from `options` too. */
export function admittedFrom(message: AdmittedMessage, hidesPrompt: boolean): Admitted {
  const options: Loose = {
    ...fieldsOf(SamplingParamsSchema, message.sampling),
    ...fieldsOf(StoppingParamsSchema, message.stopping),
    ...fieldsOf(OutputParamsSchema, message.output),
    ...(message.constraint === undefined ? {} : formOf(message.constraint)),
  };
  const ngram = message.sampling?.noRepeatNgram;
  if (ngram !== undefined) options.noRepeatNgram = fieldsOf(NoRepeatNgramSchema, ngram);
  const parse = message.output?.parse;
  if (parse !== undefined) {
    options.parse = fieldsOf(ParseParamsSchema, parse);
  }
  if (message.beamSearch !== undefined) options.beamSearch = beamsOf(message.beamSearch);
  if (hidesPrompt) options.returnPromptTokenIds = false;
  const ids = hidesPrompt ? [] : message.promptTokenIds;
  return {
    type: "admitted",
    model: message.model,
    promptTokens: message.promptTokens,
    promptTokenIds: ids.length > 0 ? [...ids] : undefined,
    options: options as Options,
    serverRequestId: message.serverRequestId,
    adapter: message.adapter === undefined ? undefined : adapterFrom(message.adapter),
  };
}

/** The fields of a message that are set, by name. */
function fieldsOf(schema: DescMessage, message: ProtoMessage | undefined): Loose {
  if (message === undefined) return {};
  const values = message as unknown as Loose;
  const set = schema.fields.filter((field) => isFieldSet(message, field));
  return Object.fromEntries(set.map(({ localName, scalar }) => [localName, plain(values[localName], scalar)]));
}

function plain(value: unknown, scalar: unknown): unknown {
  if (Array.isArray(value)) return [...value];
  if (typeof value === "number" && scalar !== undefined) return decimal(value);
  return typeof value === "object" && value !== null ? { ...value } : value;
}

/** The shortest decimal number that is the same float of 32 bits: 0.8 and not 0.800000011920929. */
function decimal(value: number): number {
  for (let digits = 7; digits < 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return short;
  }
  return value;
}

function formOf(constraint: Constraint): Loose {
  const { kind, anyWhitespace, afterReasoning } = constraint;
  const form: Loose = {};
  if (anyWhitespace) form.anyWhitespace = true;
  if (afterReasoning !== undefined) form.afterReasoning = afterReasoning;
  if (kind.case === "choice") {
    form.choice = [...kind.value.texts];
  } else if (kind.case === "structuralTags") {
    const tags = kind.value.tags.map(({ begin, jsonSchema, end, trigger }) => ({
      begin,
      end,
      ...(jsonSchema === "" ? {} : { jsonSchema }),
      ...(trigger === "" ? {} : { trigger }),
    }));
    form.structuralTags = { tags, required: kind.value.required, single: kind.value.single };
  } else if (kind.case === "toolCalls") {
    const { tools, required, single, form: beside } = kind.value;
    const functions = tools.map(({ name, parametersJson, strict }) => ({
      name,
      strict,
      ...(parametersJson === "" ? {} : { parameters: parametersJson }),
    }));
    form.toolCalls = { tools: functions, required, single, ...(beside === undefined ? {} : { form: formOf(beside) }) };
  } else if (kind.case !== undefined) {
    form[kind.case] = kind.value;
  }
  return form;
}

function beamsOf({ width, lengthPenalty, earlyStopping }: BeamSearchMessage): BeamSearch {
  const never = earlyStopping === BeamSearch_EarlyStopping.NEVER;
  const early = never ? "never" : earlyStopping === BeamSearch_EarlyStopping.YES;
  return { width, lengthPenalty: lengthPenalty ?? 1, earlyStopping: early };
}

export function adapterFrom({ name, digest }: AdapterMessage): Adapter {
  return { name, digest };
}

/** A page of ListAdapters. */
export function adaptersFrom(message: ListAdaptersResponse): ListedAdapter[] {
  return message.adapters.map(({ adapter, engines, loadedEngines }) => ({
    name: adapter?.name ?? "",
    digest: adapter?.digest ?? "",
    engines,
    loadedEngines,
  }));
}

/** A piece of an answer; undefined for a kind that only a later contract has. */
export function partFrom({ kind, contentTokens }: PartMessage): Part | undefined {
  if (kind.case === "content") return { type: "content", text: kind.value, tokens: [...contentTokens] };
  if (kind.case === "reasoning") return { type: "reasoning", text: kind.value };
  if (kind.case !== "toolCall") return undefined;
  const { index, id, name, argumentsJson } = kind.value;
  return { type: "toolCall", index, id, name, arguments: argumentsJson };
}

/** Why a choice ended. An unknown reason, of a later contract, counts as an error, never as success. */
export function finishReasonOf(message: ChoiceFinished): FinishReason {
  return REASONS[message.finishReason] ?? "error";
}

/** The error of a choice that did not end well. */
export function failureOf(reason: FinishReason, message: ChoiceFinished): RingError | undefined {
  if (reason === "cancelled") return new Cancelled("the request was cancelled");
  if (reason === "deadline") return new DeadlineExceeded("the request's timeout passed");
  if (reason !== "error") return undefined;
  if (message.error !== undefined) return fromStatus(message.error);
  if (message.finishReason in REASONS) return new ServerError("the server gave no reason for the failure");
  return new ServerError(`unknown finish reason ${message.finishReason}`);
}

export function usageFrom(message: UsageMessage | undefined): Usage {
  return {
    promptTokens: message?.promptTokens ?? 0,
    cachedTokens: message?.cachedTokens ?? 0,
    completionTokens: message?.completionTokens ?? 0,
    reasoningTokens: message?.reasoningTokens ?? 0,
    mediaTokens: message?.mediaTokens ?? 0,
    acceptedDraftTokens: message?.acceptedDraftTokens ?? 0,
    rejectedDraftTokens: message?.rejectedDraftTokens ?? 0,
  };
}

/** One entry per token. Throws ProtocolError if the arrays are not aligned. */
export function logprobsFrom({ logprobs, ranks, topCount, topIds, topLogprobs }: Logprobs): TokenLogprob[] {
  const alternatives = topCount * logprobs.length;
  if (ranks.length !== logprobs.length || topIds.length !== alternatives || topLogprobs.length !== alternatives) {
    const what = `${topIds.length} alternatives for ${logprobs.length} tokens of ${topCount} each`;
    throw new ProtocolError(`the server broke the protocol: log probabilities that are not aligned (${what})`);
  }
  return logprobs.map((logprob, index) => {
    const ids = topIds.slice(index * topCount, (index + 1) * topCount);
    const top = ids.map((tokenId, place) => ({ tokenId, logprob: topLogprobs[index * topCount + place] ?? NaN }));
    return { logprob, rank: ranks[index] ?? 0, top };
  });
}

export function tokenizationFrom({ tokenIds, rendered, maxModelLen }: TokenizeResponse): Tokenization {
  return { tokenIds, rendered, maxModelLen };
}

/** The answer of ListModels. */
export function modelsFrom(message: ListModelsResponse): Model[] {
  return message.models.map((model) => ({
    name: model.name,
    architecture: model.architecture,
    vocabSize: model.vocabSize,
    maxModelLen: model.maxModelLen,
    eosTokenIds: model.eosTokenIds,
    hasChatTemplate: model.hasChatTemplate,
    tokenizerDigest: model.tokenizerDigest,
    modelDigest: model.modelDigest,
    capabilities: new Set(model.capabilities),
    defaultSampling: fieldsOf(SamplingParamsSchema, model.defaultSampling) as Record<string, number>,
    numParameters: model.numParameters === 0n ? undefined : Number(model.numParameters),
    pooling: model.pooling === undefined ? undefined : poolingFrom(model.pooling),
    adapters: model.adapters.map(adapterFrom),
  }));
}

function poolingFrom(facts: PoolingFacts): Pooling {
  return {
    tasks: facts.tasks.flatMap((task) => TASKS[task] ?? []),
    dimensions: facts.dimensions,
    isMatryoshka: facts.isMatryoshka,
    matryoshkaDimensions: facts.matryoshkaDimensions,
    normalizes: facts.normalizes,
    labels: facts.labels,
    prompts: facts.prompts,
    defaultPrompt: facts.defaultPrompt,
    scoresPairs: facts.pairForm !== PairForm.UNSPECIFIED,
  };
}
