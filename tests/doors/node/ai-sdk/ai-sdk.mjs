// The AI SDK (the package ai) with @ai-sdk/openai-compatible.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { ASKED, show } from "../subjects.mjs";

const provider = createOpenAICompatible({
  name: "ringline",
  baseURL: process.argv[2],
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider("tiny");
const greedy = { model, temperature: 0, maxOutputTokens: ASKED.max_tokens, maxRetries: 0 };
const prompt = ASKED.messages[0].content;
const number = z.int().min(0).max(99);
const add = tool({
  description: "Add two numbers.",
  inputSchema: z.strictObject({ a: number, b: number }),
  execute: async ({ a, b }) => a + b,
});

await show({
  async chat() {
    const shown = await generateText({ ...greedy, prompt });
    return { text: shown.text, reason: shown.finishReason, usage: shown.usage };
  },

  async stream() {
    const shown = streamText({ ...greedy, prompt });
    let text = "";
    for await (const piece of shown.textStream) text += piece;
    return { text, reason: await shown.finishReason, usage: await shown.usage };
  },

  /** The SDK runs the tool, and asks again with its result. */
  async tools_round_trip() {
    const demand = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
    const asked = { ...greedy, prompt, tools: { add }, prepareStep: demand, stopWhen: isStepCount(2) };
    const { steps, text } = await generateText(asked);
    const call = steps[0].toolCalls[0];
    return { name: call.toolName, input: call.input, output: steps[0].toolResults[0].output, text };
  },

  async tools_streamed() {
    const shown = streamText({ ...greedy, prompt, tools: { add }, toolChoice: { type: "tool", toolName: "add" } });
    const calls = [];
    for await (const part of shown.fullStream) if (part.type === "tool-call") calls.push(part.input);
    return calls;
  },

  async json_schema() {
    const schema = z.strictObject({ unit: z.enum(["apples", "pears"]), count: number });
    return (await generateObject({ ...greedy, prompt, schema })).object;
  },

  async errors() {
    try {
      await generateText({ ...greedy, model: provider("unknown"), prompt });
    } catch (error) {
      return { kind: error.name, status: error.statusCode, message: error.message };
    }
  },
});
