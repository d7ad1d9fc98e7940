// tmcp, served on stdin and stdout with the tools that are measured.
import { ZodJsonSchemaAdapter } from '@tmcp/adapter-zod';
import { StdioTransport } from '@tmcp/transport-stdio';
import { McpServer } from 'tmcp';
import * as z from 'zod';

const position = process.argv.indexOf('--tools');
const count = position < 0 ? 5 : Number(process.argv[position + 1]);
const server = new McpServer(
  { name: 'bench', version: '1', description: 'What is measured.' },
  { adapter: new ZodJsonSchemaAdapter(), capabilities: { tools: {} } },
);

function offer(name, description, given, returned, run) {
  const handler = async (values) => {
    const result = await run(values);
    return { content: [{ type: 'text', text: `${result}` }], structuredContent: { result } };
  };
  server.tool({ name, description, schema: z.object(given), outputSchema: z.object({ result: returned }) }, handler);
}

const pair = { a: z.int(), b: z.int() };
offer('add', 'Add two numbers.', pair, z.int(), ({ a, b }) => a + b);
offer('add_sync', 'Add two numbers, in a function that blocks.', pair, z.int(), ({ a, b }) => a + b);
offer('blob', 'Return a text of so many characters.', { size: z.int() }, z.string(), ({ size }) => '.'.repeat(size));
offer('measure', 'Return how long a text is.', { text: z.string() }, z.int(), ({ text }) => text.length);
offer('slow', 'Take a while.', { seconds: z.number() }, z.string(), async ({ seconds }) => {
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  return 'awake';
});
for (let number = 5; number < count; number += 1) {
  const given = { query: z.string(), limit: z.int().default(10), exact: z.boolean().default(false) };
  const about = `Look for a query in shelf ${number} and return what fits it best.`;
  offer(`tool_${`${number}`.padStart(5, '0')}`, about, given, z.string(), ({ query, limit, exact }) => `${query} ${limit} ${exact}`);
}

new StdioTransport(server).listen();
