// The Java client does one of the uses that recorded_java.yaml lists, with the permissions for it.
import io.nats.client.*;
import io.nats.client.api.*;
import java.io.ByteArrayOutputStream;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

public class Client {
    static final Duration WAIT = Duration.ofSeconds(10);

    public static void main(String[] words) throws Exception {
        String url = words[0], user = words[1], password = words[2], inbox = words[3];
        ErrorListener listener = new ErrorListener() {
            @Override
            public void errorOccurred(Connection from, String error) {
                System.out.println(error);
            }
        };
        Options options = new Options.Builder()
            .server(url).userInfo(user, password).inboxPrefix(inbox).connectionTimeout(WAIT)
            .errorListener(listener).build();
        try (Connection client = Nats.connect(options)) {
            use(client, words[4]);
            client.flush(WAIT);
        }
    }

    static void use(Connection client, String what) throws Exception {
        switch (what) {
            case "publish" -> {
                client.jetStream().publish("orders.eu.1", new byte[1]);
                client.jetStream().publishAsync("orders.eu.2", new byte[1]).get();
            }
            case "publish in another domain" -> client.jetStream().publish("jobs.a", new byte[1]);
            case "consume" -> consume(client.getStreamContext("ORDERS").getConsumerContext("PULL"));
            case "consume in another domain" -> {
                JetStreamOptions leaf = JetStreamOptions.builder().domain("leaf").build();
                next(client.getConsumerContext("JOBS", "WORKER", leaf));
            }
            case "consume by push" -> push(client);
            case "read keys" -> get(client.keyValue("CONFIG"));
            case "read keys without direct reads" -> get(client.keyValue("OLD"));
            case "read keys of another domain" -> get(client.keyValue("LOCAL", leaf()));
            case "watch keys" -> watch(client.keyValue("CONFIG"));
            case "write keys" -> write(client.keyValue("CONFIG"));
            case "write keys of another domain" -> write(client.keyValue("LOCAL", leaf()));
            case "read objects" -> read(client.objectStore("FILES"));
            case "watch objects" -> watch(client.objectStore("FILES"));
            case "write objects" -> write(client.objectStore("FILES"));
            default -> throw new IllegalArgumentException(what);
        }
    }

    static KeyValueOptions leaf() {
        return KeyValueOptions.builder().jsDomain("leaf").build();
    }

    static void check(boolean met, String what) {
        if (!met) throw new IllegalStateException(what);
    }

    static void next(ConsumerContext consumer) throws Exception {
        consumer.next(WAIT).ackSync(WAIT);
    }

    static void consume(ConsumerContext consumer) throws Exception {
        next(consumer);
        try (FetchConsumer fetched = consumer.fetchMessages(1)) {
            fetched.nextMessage().ack();
        }
        ConsumeOptions few = ConsumeOptions.builder().batchSize(10).build();
        try (IterableConsumer iterated = consumer.iterate(few)) {
            iterated.nextMessage(WAIT).ackSync(WAIT);
        }
        CountDownLatch taken = new CountDownLatch(1);
        try (MessageConsumer consumed = consumer.consume(few, message -> {
            message.ack();
            taken.countDown();
        })) {
            check(taken.await(10, TimeUnit.SECONDS), "consumed");
        }
    }

    /** The messages are large enough for flow control. */
    static void push(Connection client) throws Exception {
        PushSubscribeOptions bound = PushSubscribeOptions.bind("ORDERS", "ALONE");
        JetStreamSubscription found = client.jetStream().subscribe(null, bound);
        for (int number = 0; number < 60; number++) {
            Message message = found.nextMessage(WAIT);
            check(message != null, "message " + number + " arrives");
            message.ackSync(WAIT);
        }
    }

    static void get(KeyValue bucket) throws Exception {
        check(bucket.get("eu.a") != null, "the key is there");
        check(bucket.get("eu.none") == null, "no key is there");
    }

    static void watch(KeyValue bucket) throws Exception {
        get(bucket);
        EndedKeys ended = new EndedKeys();
        try (var watching = bucket.watch("eu.>", ended)) {
            ended.await();
        }
        check(!bucket.keys("eu.>").isEmpty(), "keys");
        check(!bucket.history("eu.a").isEmpty(), "history");
    }

    static void write(KeyValue bucket) throws Exception {
        long first = bucket.create("eu.new", new byte[1]);
        bucket.update("eu.new", new byte[2], first);
        bucket.put("eu.new", new byte[3]);
        bucket.delete("eu.new");
        bucket.purge("eu.new");
    }

    /** One object is a single chunk, the other has several, enough for flow control. */
    static void read(ObjectStore files) throws Exception {
        for (String name : List.of("small", "large")) {
            ByteArrayOutputStream content = new ByteArrayOutputStream();
            check(files.get(name, content).getSize() == content.size(), name);
        }
    }

    static void watch(ObjectStore files) throws Exception {
        read(files);
        check(files.getList().size() == 2, "list");
        EndedObjects ended = new EndedObjects();
        try (var watching = files.watch(ended)) {
            ended.await();
        }
    }

    static void write(ObjectStore files) throws Exception {
        for (int size : new int[] {1, 200_000}) files.put("new", new byte[size]);
        files.updateMeta("new", ObjectMeta.builder("new").description("changed").build());
        files.delete("new");
    }

    /** Waits for the end of what was there before. */
    static class Ended<T> implements Watcher<T> {
        final CountDownLatch latch = new CountDownLatch(1);

        @Override
        public void watch(T found) {}

        @Override
        public void endOfData() {
            latch.countDown();
        }

        void await() throws InterruptedException {
            check(latch.await(10, TimeUnit.SECONDS), "the end of data");
        }
    }

    static class EndedKeys extends Ended<KeyValueEntry> implements KeyValueWatcher {}

    static class EndedObjects extends Ended<ObjectInfo> implements ObjectStoreWatcher {}
}
