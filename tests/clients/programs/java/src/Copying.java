import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Copies a topic, each message once: some at a time in a transaction, with the group's positions. */
final class Copying implements Runnable {
    private final String bootstrap;
    private final JsonNode wish;
    private final String from;
    private int committed;
    private int aborted;
    private String trouble;
    private volatile boolean done;

    Copying(String bootstrap, JsonNode wish) {
        this.bootstrap = bootstrap;
        this.wish = wish;
        this.from = wish.get("topic").asText();
    }

    static Copying start(String bootstrap, JsonNode wish) {
        Copying copying = new Copying(bootstrap, wish);
        Thread thread = new Thread(copying, "copying");
        thread.setDaemon(true);
        thread.start();
        return copying;
    }

    synchronized Map<String, Object> status() {
        Map<String, Object> status = new HashMap<>();
        status.put("done", done);
        status.put("committed", committed);
        status.put("aborted", aborted);
        status.put("trouble", trouble);
        return status;
    }

    @Override
    public void run() {
        while (!done) {
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(producing())) {
                producer.initTransactions();
                while (!done) {
                    copy(producer);
                }
            } catch (RuntimeException error) {
                note(error);
            }
        }
    }

    private synchronized void note(Exception error) {
        trouble = error.toString();
    }

    /** Until something is aborted: what comes after that begins at the committed positions. */
    private void copy(KafkaProducer<byte[], byte[]> producer) {
        int each = wish.path("each").asInt(5);
        int abortEvery = wish.path("abort_every").asInt(0);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consuming(each))) {
            consumer.subscribe(List.of(from));
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    if (isAtEnd(consumer)) {
                        done = true;
                        return;
                    }
                    continue;
                }
                try {
                    producer.beginTransaction();
                    Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        producer.send(
                                new ProducerRecord<>(
                                        wish.get("to").asText(), record.key(), record.value()));
                        positions.put(
                                new TopicPartition(record.topic(), record.partition()),
                                new OffsetAndMetadata(record.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                    if (abortEvery > 0 && (committed + aborted + 1) % abortEvery == 0) {
                        // Else what is not sent yet never is.
                        producer.flush();
                        producer.abortTransaction();
                        count(false);
                        return;
                    }
                    producer.commitTransaction();
                    count(true);
                } catch (org.apache.kafka.common.errors.ProducerFencedException
                        | org.apache.kafka.common.errors.InvalidProducerEpochException
                        | org.apache.kafka.common.errors.OutOfOrderSequenceException
                        | org.apache.kafka.common.errors.TimeoutException error) {
                    throw error;
                } catch (KafkaException error) {
                    note(error);
                    producer.abortTransaction();
                    count(false);
                    return;
                }
            }
        }
    }

    private synchronized void count(boolean isCommitted) {
        committed += isCommitted ? 1 : 0;
        aborted += isCommitted ? 0 : 1;
    }

    private boolean isAtEnd(KafkaConsumer<byte[], byte[]> consumer) {
        Set<TopicPartition> all = new java.util.HashSet<>();
        for (PartitionInfo info : consumer.partitionsFor(from)) {
            all.add(new TopicPartition(from, info.partition()));
        }
        Map<TopicPartition, OffsetAndMetadata> positions = consumer.committed(all);
        Map<TopicPartition, Long> ends = consumer.endOffsets(all);
        return all.stream().allMatch(each -> {
            OffsetAndMetadata position = positions.get(each);
            return ends.get(each) == (position == null ? 0 : position.offset());
        });
    }

    private Properties producing() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", wish.get("transactional_id").asText());
        settings.put("transaction.timeout.ms", Json.text(wish, "timeout_ms", "60000"));
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        return settings;
    }

    private Properties consuming(int each) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", wish.get("group").asText());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", each);
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        return settings;
    }
}
