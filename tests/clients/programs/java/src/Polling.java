import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One consumer in its own thread; whatever else touches it runs between two polls. */
final class Polling implements Runnable, ConsumerRebalanceListener {
    private static final int LARGE_BYTES = 1000;
    private final String name;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final ConcurrentLinkedQueue<Runnable> calls = new ConcurrentLinkedQueue<>();
    private List<List<Object>> assignment;
    private boolean open = true;
    private Thread thread;

    Polling(String name, KafkaConsumer<byte[], byte[]> consumer) {
        this.name = name;
        this.consumer = consumer;
    }

    static Polling start(String bootstrap, JsonNode wish) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", Json.text(wish, "reset", "earliest"));
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", Json.text(wish, "isolation", "read_uncommitted"));
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("metadata.max.age.ms", "1000");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        boolean cooperative = "cooperative-sticky".equals(Json.text(wish, "assignor", "range"));
        settings.put(
                "partition.assignment.strategy",
                (cooperative ? CooperativeStickyAssignor.class : RangeAssignor.class).getName());
        if (wish.hasNonNull("group")) {
            settings.put("group.id", wish.get("group").asText());
        }
        if (wish.hasNonNull("instance_id")) {
            settings.put("group.instance.id", wish.get("instance_id").asText());
        }
        if (wish.hasNonNull("max_bytes")) {
            settings.put("max.partition.fetch.bytes", wish.get("max_bytes").asText());
        }
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        Polling polling = new Polling(wish.get("consumer").asText(), consumer);
        if (wish.hasNonNull("partitions")) {
            Map<TopicPartition, Long> starts = new HashMap<>();
            for (JsonNode start : wish.get("partitions")) {
                TopicPartition partition =
                        new TopicPartition(start.get(0).asText(), start.get(1).asInt());
                starts.put(partition, start.get(2).asLong());
            }
            consumer.assign(starts.keySet());
            starts.forEach(consumer::seek);
        } else {
            List<String> topics = new ArrayList<>();
            wish.get("topics").forEach(topic -> topics.add(topic.asText()));
            consumer.subscribe(topics, polling);
        }
        polling.thread = new Thread(polling, polling.name);
        polling.thread.setDaemon(true);
        polling.thread.start();
        return polling;
    }

    void seek(String topic, int partition, long offset) throws Exception {
        call(() -> {
            consumer.seek(new TopicPartition(topic, partition), offset);
            return null;
        });
    }

    void commit() throws Exception {
        call(() -> {
            consumer.commitSync(Duration.ofSeconds(30));
            return null;
        });
    }

    void close() throws Exception {
        call(() -> {
            open = false;
            consumer.close(Duration.ofSeconds(10));
            return null;
        });
        thread.join(10_000);
    }

    private void call(Callable<Void> work) throws Exception {
        CompletableFuture<Void> done = new CompletableFuture<>();
        calls.add(() -> {
            try {
                done.complete(work.call());
            } catch (Exception error) {
                done.completeExceptionally(error);
            }
        });
        done.get(40, TimeUnit.SECONDS);
    }

    @Override
    public void run() {
        while (open) {
            for (Runnable next = calls.poll(); next != null; next = calls.poll()) {
                next.run();
            }
            if (!open) {
                return;
            }
            try {
                List<Map<String, Object>> records = new ArrayList<>();
                consumer.poll(Duration.ofMillis(50)).forEach(record -> records.add(seen(record)));
                reportAssignment();
                if (!records.isEmpty()) {
                    Json.emit(Map.of("consumer", name, "event", "records", "records", records));
                }
            } catch (RuntimeException error) {
                Json.emit(Map.of("consumer", name, "event", "error", "message", error.toString()));
            }
        }
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        if (!partitions.isEmpty()) {
            Json.emit(Map.of("consumer", name, "event", "revoked", "partitions", pairs(partitions)));
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

    private void reportAssignment() {
        List<List<Object>> now = pairs(consumer.assignment());
        if (!now.equals(assignment)) {
            assignment = now;
            Json.emit(Map.of("consumer", name, "event", "assignment", "partitions", now));
        }
    }

    private static List<List<Object>> pairs(Collection<TopicPartition> partitions) {
        List<List<Object>> pairs = new ArrayList<>();
        partitions.stream()
                .sorted(Comparator.comparing(TopicPartition::topic)
                        .thenComparing(TopicPartition::partition))
                .forEach(p -> pairs.add(List.of(p.topic(), p.partition())));
        return pairs;
    }

    private static Map<String, Object> seen(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> seen = new HashMap<>();
        seen.put("topic", record.topic());
        seen.put("partition", record.partition());
        seen.put("offset", record.offset());
        seen.put("timestamp", record.timestamp());
        seen.put("key", Json.text(record.key()));
        seen.put("size", record.serializedValueSize());
        byte[] value = record.value();
        if (value != null && value.length > LARGE_BYTES) {
            seen.put("sha256", sha256(value));
            value = Arrays.copyOf(value, LARGE_BYTES);
        }
        seen.put("value", value == null ? null : new String(value, StandardCharsets.UTF_8));
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), Json.text(header.value())));
        }
        seen.put("headers", headers);
        return seen;
    }

    private static String sha256(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
