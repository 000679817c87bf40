// The official Node client against the quickstart.
//
//	npm install --prefix examples/clients
//	node examples/clients/chat.mjs
//
// Each conversation has two turns. The second begins as the first did, so the
// engine that served the first answers it from its cache, and says so in the usage.

import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({
	baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8080/v1",
	apiKey: process.env.OPENAI_API_KEY ?? "none",
});

const model = (await client.models.list()).data[0].id;

// chat returns the answer and its usage.
async function chat(messages) {
	const answer = await client.chat.completions.create({ model, messages, max_tokens: 16 });
	return [answer.choices[0].message.content, answer.usage];
}

// chatStream does the same piece by piece.
async function chatStream(messages) {
	const stream = await client.chat.completions.create({
		model,
		messages,
		max_tokens: 16,
		stream: true,
		stream_options: { include_usage: true },
	});
	let text = "";
	let usage;
	for await (const chunk of stream) {
		text += chunk.choices[0]?.delta.content ?? "";
		usage = chunk.usage ?? usage;
	}
	return [text, usage];
}

for (let number = 0; number < 4; number++) {
	const ask = number % 2 ? chatStream : chat;
	const lines = Array.from({ length: 100 }, (_, i) => `Line ${i} says ${i * i}. `).join("");
	const messages = [{ role: "user", content: `Document ${number} for Node. ${lines}What is it about?` }];
	const [text, first] = await ask(messages);
	assert.ok(text, "an empty answer");
	messages.push({ role: "assistant", content: text }, { role: "user", content: "And in one word?" });
	const [again, second] = await ask(messages);
	assert.ok(again, "an empty answer");
	const cached = second.prompt_tokens_details.cached_tokens;
	console.log(`conversation ${number}: ${second.prompt_tokens} prompt tokens in turn 2, ${cached} from the cache`);
	assert.ok(cached > first.prompt_tokens / 2 && cached < second.prompt_tokens, JSON.stringify({ first, second }));
}

const completion = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 16 });
assert.ok(completion.choices[0].text);
assert.equal(completion.usage.completion_tokens, 16);
console.log("completion:", completion.choices[0].text.trim());
