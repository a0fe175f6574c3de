// @langchain/openai.

import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { ASKED, all, show } from "../subjects.mjs";

const asked = { model: "tiny", temperature: 0, maxTokens: ASKED.max_tokens, maxRetries: 0, apiKey: "none" };
const model = new ChatOpenAI({ ...asked, configuration: { baseURL: process.argv[2] } });
const question = new HumanMessage(ASKED.messages[0].content);
const number = z.int().min(0).max(99);
const add = tool(({ a, b }) => String(a + b), {
  name: "add",
  description: "Add two numbers.",
  schema: z.strictObject({ a: number, b: number }),
});

await show({
  async chat() {
    const shown = await model.invoke([question]);
    return { text: shown.content, usage: shown.usage_metadata };
  },

  async stream() {
    const chunks = await all(await model.stream([question]));
    const whole = chunks.reduce((left, right) => left.concat(right));
    return { text: whole.content, usage: whole.usage_metadata };
  },

  async tools_round_trip() {
    const first = await model.bindTools([add], { tool_choice: "required" }).invoke([question]);
    const [call] = first.tool_calls;
    const result = new ToolMessage({ content: await add.invoke(call.args), tool_call_id: call.id });
    const second = await model.bindTools([add]).invoke([question, first, result]);
    return { name: call.name, arguments: call.args, second: second.content };
  },

  structured() {
    const fruit = z.strictObject({ unit: z.enum(["apples", "pears"]), count: number });
    return model.withStructuredOutput(fruit, { method: "jsonSchema" }).invoke([question]);
  },
});
