package bookstand.interop.wire;

import bookstand.interop.Json;
import bookstand.interop.Lines;
import bookstand.interop.Served;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The original's client on a served store: what it is asked, between {@code start} and {@code stop}. */
public final class Wire {

    private static final Map<String, Client> CLIENTS = new TreeMap<>();

    private static Served served;
    private static Originals originals;
    private static Scenario scenario;
    private static int scenarios;

    private Wire() {
    }

    public static void main(String[] args) throws Exception {
        Lines.answer(args, Map.of(
                "start", (request, answer) -> {
                    served = new Served(request.get("command"));
                    answer.put("result", "0");
                },
                "stop", (request, answer) -> answer.put("result", String.valueOf(stop())),
                "step", (request, answer) -> {
                    boolean v2 = request.get("version").equals("v2");
                    Client client = CLIENTS.computeIfAbsent(request.get("version"), made -> new Client(served, v2));
                    answer.put("result", client.run(text(request.get("name"))));
                },
                "scenario", (request, answer) -> {
                    leave();
                    scenario = new Scenario(served, ++scenarios, Json.read(text(request.get("header"))));
                    answer.put("result", "0");
                },
                "outstanding", (request, answer) -> answer.put("result", Outstanding.run(
                        served, request.get("client"), Integer.parseInt(request.get("count")))),
                "record", (request, answer) -> answer.put("lines", Lines.text(record(
                        Json.read(text(request.get("scenarios")))).toString())),
                "alive", (request, answer) -> answer.put("result", "0"),
                "operation", (request, answer) -> {
                    JsonNode told = scenario.apply(Json.read(text(request.get("line"))));
                    answer.put("line", Lines.text(told.toString()));
                }));
        if (originals != null) {
            // Bookies have threads that do not end.
            System.exit(0);
        }
    }

    /** The lines of scenarios, each with what original bookies answered. */
    private static JsonNode record(JsonNode asked) throws Exception {
        if (originals == null) {
            originals = new Originals();
        }
        List<Object> recorded = new ArrayList<>();
        for (JsonNode one : asked) {
            Scenario made = new Scenario(originals, ++scenarios, one.get("header"));
            List<Object> lines = new ArrayList<>();
            for (JsonNode line : one.get("lines")) {
                ObjectNode operation = line.deepCopy();
                operation.put("record", true);
                ObjectNode outcome = line.deepCopy();
                outcome.setAll((ObjectNode) made.apply(operation));
                lines.add(outcome);
            }
            made.leave();
            recorded.add(lines);
        }
        Scenario.closeClients();
        return Json.of(recorded);
    }

    private static int stop() throws Exception {
        leave();
        Scenario.closeClients();
        for (Client client : CLIENTS.values()) {
            client.leave();
        }
        CLIENTS.clear();
        return served.stop();
    }

    private static void leave() throws Exception {
        if (scenario != null) {
            scenario.leave();
            scenario = null;
        }
    }

    private static String text(String hex) {
        return new String(Lines.bytes(hex), StandardCharsets.UTF_8);
    }
}
