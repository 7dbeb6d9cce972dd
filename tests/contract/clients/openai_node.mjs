// Run where the official OpenAI client for Node is installed. Does what its first argument names
// against the gateway at OPENAI_BASE_URL, and prints what it saw as one JSON object.

import OpenAI from "openai";
import { makeParseableResponseFormat } from "openai/lib/parser";

const client = new OpenAI({ maxRetries: 0 });
// A model that says anything is made to call, and bounded in what it says then.
const forced = "FORCED" in process.env;
const city = forced ? { enum: ["Oslo", "Bergen"] } : { type: "string" };
const strict = forced ? { required: ["city"], additionalProperties: false } : {};
const schema = { type: "object", properties: { city }, ...strict };
const messages = [{ role: "user", content: "Weather?" }];
const told = (text) => `${JSON.parse(text).city}: 21`;

const chatTool = { type: "function", function: { name: "get_weather", parameters: schema } };
const tool = { type: "function", name: "get_weather", parameters: schema, strict: false };

const name = "get_weather";
const once = { parallel_tool_calls: false };
const chatCall = forced
  ? { tool_choice: { type: "function", function: { name } }, max_tokens: 900, ...once } : {};
const chatSay = forced ? { tool_choice: "none", max_tokens: 24 } : {};
const call = forced
  ? { tool_choice: { type: "function", name }, max_output_tokens: 900, ...once } : {};
const say = forced ? { tool_choice: "none", max_output_tokens: 24 } : {};

async function chat() {
  const first = await client.chat.completions.create({
    model: "tiny", messages, tools: [chatTool], ...chatCall,
  });
  const { message } = first.choices[0];
  const results = message.tool_calls.map((call) => ({
    role: "tool", tool_call_id: call.id, content: told(call.function.arguments),
  }));
  const last = await client.chat.completions.create({
    model: "tiny", messages: [...messages, message, ...results], tools: [chatTool], ...chatSay,
  });
  return { first, last };
}

// The helper that streams, runs the tools itself, and asks again until there are no calls.
async function runner() {
  const cities = [];
  const run = client.chat.completions.runTools({
    model: "tiny",
    messages,
    stream: true,
    stream_options: { include_usage: true },
    tools: [{
      type: "function",
      function: {
        name: "get_weather",
        parameters: schema,
        parse: JSON.parse,
        function: ({ city }) => { cities.push(city); return `${city}: 21`; },
      },
    }],
  });
  const text = await run.finalContent();
  const replies = run.allChatCompletions();
  const usage = await run.totalUsage();
  return { text, cities, usage, first: replies[0], last: replies.at(-1) };
}

async function responses() {
  const stream = client.responses.stream({ model: "tiny", input: messages, tools: [tool], ...call });
  const kinds = new Set();
  for await (const event of stream) kinds.add(event.type);
  const first = await stream.finalResponse();
  const results = first.output.filter((item) => item.type === "function_call").map((item) => ({
    type: "function_call_output", call_id: item.call_id, output: told(item.arguments),
  }));
  const last = await client.responses.create({
    model: "tiny", input: [...messages, ...first.output, ...results], tools: [tool], ...say,
  });
  return { kinds: [...kinds], first, last, text: last.output_text };
}

async function parsed() {
  const properties = { city: { type: "string" }, degrees: { type: "integer" } };
  const format = makeParseableResponseFormat(
    { type: "json_schema", json_schema: { name: "weather", schema: { type: "object", properties } } },
    JSON.parse,
  );
  const reply = await client.chat.completions.parse({
    model: "tiny", messages, response_format: format,
  });
  return reply.choices[0].message.parsed;
}

async function errors() {
  const found = {};
  for (const [name, body, apiKey] of [
    ["key", {}, "wrong"], ["model", { model: "other" }], ["full", {}],
  ]) {
    try {
      const asking = apiKey ? client.withOptions({ apiKey }) : client;
      await asking.chat.completions.create({ model: "tiny", messages, ...body });
    } catch (error) {
      found[name] = { class: error.constructor.name, status: error.status, code: error.code,
        request_id: error.requestID };
    }
  }
  return found;
}

const doings = { chat, runner, responses, parsed, errors };
process.stdout.write(JSON.stringify(await doings[process.argv.at(-1)]()));
