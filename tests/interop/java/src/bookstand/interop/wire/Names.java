package bookstand.interop.wire;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The names that a recording has for the ledgers of a scenario: generated, chosen from a range, or the id itself. */
final class Names {

    private static final long EXPLICIT_FROM = 5_000_000_000L;
    private static final int EXPLICIT_COUNT = 1_000;

    private final Map<String, Long> ids = new HashMap<>();
    private final Map<Long, String> names = new HashMap<>();
    private final long explicit;
    private int generated;

    /** Each scenario of a store has a range of its own. */
    Names(int scenario) {
        explicit = EXPLICIT_FROM + (long) scenario * EXPLICIT_COUNT;
    }

    long id(JsonNode name) {
        if (name.isNumber()) {
            return name.asLong();
        }
        String text = name.asText();
        if (ids.containsKey(text)) {
            return ids.get(text);
        }
        if (!text.startsWith("X")) {
            throw new IllegalStateException("there is no ledger " + text);
        }
        return explicit + Long.parseLong(text.substring(1));
    }

    String of(long id) {
        if (names.containsKey(id)) {
            return names.get(id);
        }
        return id > explicit && id < explicit + EXPLICIT_COUNT ? "X" + (id - explicit) : String.valueOf(id);
    }

    /** The name of a ledger that was created. */
    String created(long id, boolean chosen) {
        if (!chosen) {
            generated++;
            ids.put("L" + generated, id);
        }
        names.put(id, chosen ? of(id) : "L" + generated);
        return names.get(id);
    }

    boolean has(long id) {
        return names.containsKey(id);
    }

    List<Long> all() {
        return new ArrayList<>(names.keySet());
    }
}
