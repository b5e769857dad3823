import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Apache Kafka's own client behind the common protocol. */
public final class Main {
    private static final int TIMEOUT_S = 30;
    private final String bootstrap;
    private final Administration administration;
    private final Map<String, Polling> consumers = new HashMap<>();
    private Copying copying;

    private Main(String bootstrap) {
        this.bootstrap = bootstrap;
        this.administration =
                new Administration(Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap)));
    }

    public static void main(String[] arguments) throws Exception {
        Main program = new Main(arguments[0]);
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = Json.MAPPER.readTree(line);
            Map<String, Object> answer = new HashMap<>();
            answer.put("id", request.get("id").asInt());
            try {
                answer.put("ok", program.answer(request));
            } catch (Exception error) {
                Map<String, Object> told = new HashMap<>();
                told.put("code", Json.code(error));
                told.put("message", error.toString());
                answer.put("error", told);
            }
            Json.emit(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private Object answer(JsonNode request) throws Exception {
        String consumer = Json.text(request, "consumer", null);
        switch (request.get("op").asText()) {
            case "produce":
                return produce(request);
            case "consume":
                consumers.put(consumer, Polling.start(bootstrap, request));
                return null;
            case "seek":
                consumers.get(consumer).seek(
                        request.get("topic").asText(),
                        request.get("partition").asInt(),
                        request.get("offset").asLong());
                return null;
            case "commit":
                consumers.get(consumer).commit();
                return null;
            case "close":
                consumers.remove(consumer).close();
                return null;
            case "copy":
                copying = Copying.start(bootstrap, request);
                return null;
            case "copied":
                return copying.status();
            default:
                return administration.answer(request);
        }
    }

    private List<Map<String, Object>> produce(JsonNode request) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", Json.text(request, "acks", "all"));
        settings.put("compression.type", Json.text(request, "compression", "none"));
        settings.put("enable.idempotence", request.path("idempotent").asBoolean(false));
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        if (request.hasNonNull("max_bytes")) {
            settings.put("max.request.size", request.get("max_bytes").asText());
        }
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode wish : request.get("records")) {
                sent.add(producer.send(record(request.get("topic").asText(), wish)));
            }
            List<Map<String, Object>> results = new ArrayList<>();
            for (Future<RecordMetadata> future : sent) {
                results.add(outcome(future));
            }
            return results;
        }
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, JsonNode wish) {
        Integer partition = wish.hasNonNull("partition") ? wish.get("partition").asInt() : null;
        Long timestamp = wish.hasNonNull("timestamp") ? wish.get("timestamp").asLong() : null;
        byte[] value = Json.bytes(wish.get("value"));
        int pad = wish.path("pad").asInt(0);
        if (pad > 0) {
            int head = value.length;
            value = Arrays.copyOf(value, head + pad);
            Arrays.fill(value, head, head + pad, (byte) 'x');
        }
        ProducerRecord<byte[], byte[]> record =
                new ProducerRecord<>(topic, partition, timestamp, Json.bytes(wish.get("key")), value);
        for (JsonNode header : wish.path("headers")) {
            record.headers().add(header.get(0).asText(), Json.bytes(header.get(1)));
        }
        return record;
    }

    private static Map<String, Object> outcome(Future<RecordMetadata> future) throws Exception {
        try {
            RecordMetadata metadata = future.get(TIMEOUT_S, TimeUnit.SECONDS);
            return Map.of("partition", metadata.partition(), "offset", metadata.offset());
        } catch (ExecutionException error) {
            Integer code = Json.code(error);
            if (code == null) {
                throw error;
            }
            return Map.of("error", code);
        }
    }
}
