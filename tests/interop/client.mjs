// A visit of a TypeScript client: connects, does one thing after the other, and prints what came of each as one JSON object.
//   node client.mjs '{"packages": FOLDER, "kind": "client" or "sdk", "mode": …, "url": … or "command": […]}'
import { createRequire } from "node:module";
import { join } from "node:path";

const plan = JSON.parse(process.argv[2]);
const require = createRequire(join(plan.packages, "package.json"));
const heard = { progress: [], asked: [], logged: [], changed: [] };
const capabilities = { elicitation: {}, sampling: {}, roots: {} };
const info = { name: "visitor", version: "1" };

const answers = {
  "elicitation/create": (request) => {
    heard.asked.push(request.params.message);
    return { action: "accept", content: { name: "Ada" } };
  },
  "sampling/createMessage": () => ({ role: "assistant", model: "none", content: { type: "text", text: "Tea." } }),
  "roots/list": () => ({ roots: [{ uri: "file:///home/ada" }] }),
};
const notices = {
  "notifications/message": (notice) => heard.logged.push(notice.params.level),
  "notifications/tools/list_changed": () => heard.changed.push("tools"),
  "notifications/resources/list_changed": () => heard.changed.push("resources"),
  "notifications/prompts/list_changed": () => heard.changed.push("prompts"),
};

async function newest() {
  const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
  const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");
  const client = new Client(info, { capabilities, versionNegotiation: { mode: plan.mode } });
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
  for (const [method, take] of Object.entries(notices)) client.setNotificationHandler(method, take);
  return [client, StdioClientTransport, StreamableHTTPClientTransport];
}

async function older() {
  const types = require("@modelcontextprotocol/sdk/types.js");
  const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
  const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const client = new Client(info, { capabilities });
  const schemas = Object.values(types).filter((one) => one?.shape?.method?.value !== undefined || one?.shape?.method?._def !== undefined);
  const schema = (method) => schemas.find((one) => (one.shape.method.value ?? one.shape.method._def.values?.[0]) === method);
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(schema(method), answer);
  for (const [method, take] of Object.entries(notices)) client.setNotificationHandler(schema(method), take);
  return [client, StdioClientTransport, StreamableHTTPClientTransport];
}

const [client, Stdio, Http] = await (plan.kind === "sdk" ? older() : newest());
const call = (name, given = {}, options = undefined) =>
  plan.kind === "sdk" ? client.callTool({ name, arguments: given }, undefined, options) : client.callTool({ name, arguments: given }, options);
const attempt = async (work) => {
  try {
    return await work();
  } catch (error) {
    return { thrown: error.code ?? error.name, message: error.message };
  }
};
const until = async (done) => {
  while (!done()) await new Promise((resolve) => setImmediate(resolve));
};

async function changes(modern) {
  const subscription = modern ? await client.listen({ toolsListChanged: true }) : undefined;
  await call("learn", { name: `t${process.pid}` });
  await until(() => heard.changed.includes("tools"));
  await subscription?.close();
}

async function stop() {
  const key = `key-${process.pid}`;
  const controller = new AbortController();
  const hear = { signal: controller.signal, onprogress: (progress) => heard.progress.push(progress.message) };
  const waiting = attempt(() => call("wait_for_ever", { key }, hear));
  await call("was_started", { key });
  await until(() => heard.progress.length > 0);
  controller.abort();
  const ended = await waiting;
  return { ended, stopped: await call("was_stopped", { key }) };
}

async function visit() {
  await client.connect(plan.url ? new Http(new URL(plan.url)) : new Stdio({ command: plan.command[0], args: plan.command.slice(1), env: process.env }));
  const version = client.getNegotiatedProtocolVersion?.() ?? "2025-11-25"; // the older package does not tell
  const modern = version >= "2026";
  if (!modern) await client.setLoggingLevel("warning");
  const found = {
    version,
    server: client.getServerVersion(),
    capabilities: client.getServerCapabilities(),
    instructions: client.getInstructions(),
    tools: (await client.listTools()).tools,
    good: await call("add", { a: 2, b: 3 }),
    wrong: await attempt(() => call("add", { a: "two" })),
    unknown: await attempt(() => call("ad", { a: 1 })),
    picture: await call("paint"),
    plain: await call("plain", { text: "as it is" }),
    steps: await call("step", { count: 2 }),
    greeted: await attempt(() => call("greet")),
    consulted: await attempt(() => call("consult")),
    resources: (await client.listResources()).resources,
    templates: (await client.listResourceTemplates()).resourceTemplates,
    text: await client.readResource({ uri: "notes://all" }),
    blob: await client.readResource({ uri: "notes://pixel" }),
    missing: await attempt(() => client.readResource({ uri: "notes://nothing" })),
    prompts: (await client.listPrompts()).prompts,
    filled: await client.getPrompt({ name: "review", arguments: { text: "It rained." } }),
    completed: await client.complete({ ref: { type: "ref/prompt", name: "review" }, argument: { name: "tone", value: "k" } }),
    pinged: modern ? {} : await client.ping(),
    stop: await stop(),
  };
  await changes(modern);
  await client.close();
  return found;
}

process.stdout.write(JSON.stringify({ ...(await visit()), heard }) + "\n");
process.exit(0);
