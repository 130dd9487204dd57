package bookstand.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;

/** The form of recordings, and of what a server is told. */
public final class Json {

    private static final ObjectMapper MAPPER = new ObjectMapper();

    private Json() {
    }

    public static JsonNode read(String text) throws IOException {
        return MAPPER.readTree(text);
    }

    public static JsonNode of(Object value) {
        return MAPPER.valueToTree(value);
    }

    /** An object of one field, which may be null. */
    public static Map<String, Object> field(String name, Object value) {
        Map<String, Object> object = new HashMap<>();
        object.put(name, value);
        return object;
    }

    public static boolean given(JsonNode operation, String name) {
        return operation.has(name) && !operation.get(name).isNull();
    }
}
