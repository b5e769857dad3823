import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.common.protocol.Errors;

/** Lines out, one at a time; bytes are UTF-8 text. */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper();
    private static final PrintStream OUT = System.out;

    private Json() {}

    static synchronized void emit(Map<String, ?> message) {
        try {
            OUT.println(MAPPER.writeValueAsString(message));
            OUT.flush();
        } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    static String text(JsonNode node, String name, String otherwise) {
        return node.hasNonNull(name) ? node.get(name).asText() : otherwise;
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : node.asText().getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    /** Kafka's code of an error, or null when the error did not come from a broker. */
    static Integer code(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null
                && (cause instanceof java.util.concurrent.ExecutionException)) {
            cause = cause.getCause();
        }
        Errors known = Errors.forException(cause);
        return known == Errors.UNKNOWN_SERVER_ERROR ? null : (int) known.code();
    }
}
