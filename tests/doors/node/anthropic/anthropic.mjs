// The @anthropic-ai/sdk package of Node.

import Anthropic from "@anthropic-ai/sdk";
import { ASKED, show } from "../subjects.mjs";

const [baseURL, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const greedy = { model, temperature: 0, max_tokens: ASKED.max_tokens };
const messages = ASKED.messages;
const { parameters, ...named } = ASKED.tool;
const tools = [{ ...named, input_schema: parameters }];

await show({
  messages: () => client.messages.create({ messages, ...greedy }),

  async stream() {
    const stream = client.messages.stream({ messages, ...greedy });
    let text = "";
    stream.on("text", (delta) => (text += delta));
    const final = await stream.finalMessage();
    return { text, final };
  },

  async tools_round_trip() {
    const first = await client.messages.create({ messages, tools, tool_choice: { type: "any" }, ...greedy });
    const use = first.content.find((block) => block.type === "tool_use");
    const result = { type: "tool_result", tool_use_id: use.id, content: "7" };
    const conversation = [
      ...messages,
      { role: "assistant", content: first.content },
      { role: "user", content: [result] },
    ];
    const second = await client.messages.create({ messages: conversation, tools, ...greedy });
    return { reason: first.stop_reason, name: use.name, input: use.input, second: second.content[0].text };
  },

  count_tokens: () => client.messages.countTokens({ model, messages }),

  async errors() {
    const wrong = { temperature: { temperature: -1 }, model: { model: "nobody" }, messages: { messages: [] } };
    const seen = {};
    for (const [name, options] of Object.entries(wrong)) {
      try {
        await client.messages.create({ messages, ...greedy, ...options });
      } catch (error) {
        seen[name] = { kind: error.constructor.name, status: error.status, type: error.error?.error?.type };
      }
    }
    return seen;
  },
});
