// The openai package of Node.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ASKED, all, computedBy, show } from "../subjects.mjs";

const [baseURL, metrics] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const greedy = { model, temperature: 0, max_completion_tokens: ASKED.max_tokens };
const messages = ASKED.messages;
const tools = [{ type: "function", function: ASKED.tool }];

await show({
  chat: () => client.chat.completions.create({ messages, ...greedy }),

  async chat_stream() {
    const options = { stream: true, stream_options: { include_usage: true } };
    return all(await client.chat.completions.create({ messages, ...options, ...greedy }));
  },

  async chat_stream_helper() {
    const stream = client.chat.completions.stream({ messages, ...greedy });
    let content = "";
    stream.on("content", (delta) => (content += delta));
    const final = await stream.finalChatCompletion();
    return { content, final: final.choices[0].message.content };
  },

  async tools_round_trip() {
    const first = await client.chat.completions.create({ messages, tools, tool_choice: "required", ...greedy });
    const [call] = first.choices[0].message.tool_calls;
    const result = { role: "tool", tool_call_id: call.id, content: "7" };
    const conversation = [...messages, first.choices[0].message, result];
    const second = await client.chat.completions.create({ messages: conversation, tools, ...greedy });
    return {
      finish_reason: first.choices[0].finish_reason,
      function: call.function,
      second: second.choices[0].message.content,
    };
  },

  async json_schema() {
    const fruit = z.strictObject({ unit: z.enum(["apples", "pears"]), count: z.int().min(0).max(99) });
    const response_format = zodResponseFormat(fruit, "fruit");
    const parsed = await client.chat.completions.parse({ messages, response_format, ...greedy });
    return { text: parsed.choices[0].message.content, parsed: parsed.choices[0].message.parsed };
  },

  completions: () => client.completions.create({ model, prompt: ASKED.prompt, temperature: 0, max_tokens: 12 }),

  async responses() {
    const asked = { model, input: messages, temperature: 0, max_output_tokens: ASKED.max_tokens };
    const whole = await client.responses.create(asked);
    const events = await all(await client.responses.create({ ...asked, stream: true }));
    const deltas = events.filter((event) => event.type === "response.output_text.delta");
    return { text: whole.output_text, streamed: deltas.map((event) => event.delta).join(""), usage: whole.usage };
  },

  async errors() {
    const wrong = {
      temperature: { messages, ...greedy, temperature: -1 },
      model: { messages, ...greedy, model: "nobody" },
      messages: { messages: "hello", ...greedy },
    };
    const seen = {};
    for (const [name, asked] of Object.entries(wrong)) {
      try {
        await client.chat.completions.create(asked);
      } catch (error) {
        const { status, param, code, type } = error;
        seen[name] = { kind: error.constructor.name, status, param, code, type };
      }
    }
    return seen;
  },

  async disconnect() {
    const asked = { messages, ...greedy, max_completion_tokens: 1500, ignore_eos: true };
    return computedBy(async () => {
      for await (const _ of await client.chat.completions.create({ ...asked, stream: true })) break;
    }, metrics);
  },
});
