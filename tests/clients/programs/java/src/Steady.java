import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends a message every few milliseconds until its input ends; as tests/cluster/programs/steady.py. */
public final class Steady {
    private static final long EVERY_MS = 5;

    private Steady() {}

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        AtomicBoolean hasEnded = new AtomicBoolean();
        Thread awaitingEnd = new Thread(() -> awaitEnd(hasEnded));
        awaitingEnd.setDaemon(true);
        awaitingEnd.start();
        int number = 0;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            while (!hasEnded.get()) {
                send(producer, topic, number % partitions, number);
                number++;
                Thread.sleep(EVERY_MS);
            }
            producer.flush();
        }
        System.out.println("sent " + number);
        System.out.flush();
    }

    private static void send(
            KafkaProducer<byte[], byte[]> producer, String topic, int partition, int number) {
        byte[] value = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
        producer.send(
                new ProducerRecord<>(topic, partition, null, value),
                (metadata, error) -> {
                    if (error == null) {
                        System.out.println(
                                "ack " + number + " " + metadata.partition() + " " + metadata.offset());
                    } else {
                        System.out.println("failed " + number + " " + error);
                    }
                });
    }

    private static void awaitEnd(AtomicBoolean hasEnded) {
        try {
            while (System.in.read() >= 0) {
                // Nothing is said, only the end counts.
            }
        } catch (IOException error) {
            System.err.println(error);
        }
        hasEnded.set(true);
    }
}
