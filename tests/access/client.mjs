// The JavaScript clients do what the application of test_clients.py declares.
import { connect } from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";

const [url, pass] = process.argv.slice(2);
const client = await connect({ servers: url, user: "proof-a-all", pass, inboxPrefix: "_INBOX_a" });
const denied = [];
(async () => {
  for await (const status of client.status()) {
    if (status.type === "error") denied.push(String(status.error));
  }
})();
const hub = jetstream(client, { timeout: 10_000 });
const leaf = jetstream(client, { domain: "leaf", timeout: 10_000 });
await hub.publish("orders.eu.1", "1");
await client.request("jobs.a", "2", { timeout: 10_000 });

for (const [js, stream, consumer] of [[hub, "ORDERS", "PULL"], [leaf, "JOBS", "WORKER"]]) {
  const found = await js.consumers.get(stream, consumer);
  for await (const message of await found.fetch({ max_messages: 1, expires: 10_000 })) {
    await message.ackAck();
  }
}
const push = await hub.consumers.getPushConsumer("ORDERS", "PUSH");
for await (const message of await push.consume()) {
  await message.ackAck();
  break;
}

const read = [];
for (const [js, name] of [[hub, "CONFIG"], [leaf, "LOCAL"]]) {
  const bucket = await new Kvm(js).open(name);
  await bucket.put("eu.a", "3");
  read.push((await bucket.get("eu.a")).string());
}
const bucket = await new Kvm(hub).open("CONFIG");
for await (const _ of await bucket.watch({ key: "eu.>" })) break;
for await (const _ of await bucket.keys()) { /* all of them */ }

const objects = [];
const files = await new Objm(hub).open("FILES");
for (const size of [200_000, 1]) {
  await files.putBlob({ name: "f" }, new Uint8Array(size));
  objects.push((await files.getBlob("f")).length);
}
await client.flush();
await client.close();
console.log(JSON.stringify({ denied, read, objects }));
