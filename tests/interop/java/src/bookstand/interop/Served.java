package bookstand.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A process that serves a store, and what may be asked of it. */
public final class Served implements Cluster {

    private static final String ZOOKEEPER = "--zookeeper";
    private static final int OK = 200;
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private final HttpClient http = HttpClient.newHttpClient();
    private final List<String> command;
    private Process process;
    private JsonNode said;

    /** The command says where it is on one line of JSON. */
    public Served(String command) throws IOException {
        this.command = new ArrayList<>(Arrays.asList(command.split(" ")));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> process.destroyForcibly()));
        start();
    }

    private void start() throws IOException {
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader out =
                new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        String line = out.readLine();
        if (line == null) {
            throw new IOException("nothing is served by " + String.join(" ", command));
        }
        said = Json.read(line);
    }

    @Override
    public String uri() {
        return said.get("metadata_service_uri").asText();
    }

    public JsonNode state() throws Exception {
        return ask("GET", "/state", null);
    }

    @Override
    public JsonNode bookies() {
        return said.get("bookies");
    }

    @Override
    public void putIn(String rule) throws Exception {
        ask("POST", "/faults", Json.of(Json.field("rule", rule)));
    }

    @Override
    public void takeOut(String rule) throws Exception {
        ask("DELETE", "/faults?rule=" + URLEncoder.encode(rule, StandardCharsets.UTF_8), null);
    }

    @Override
    public void takeOutAll() throws Exception {
        ask("DELETE", "/faults", null);
    }

    /** It is gone, as if its process had died. */
    @Override
    public void stopBookie(int number) throws Exception {
        ask("POST", "/bookies/" + number + "/stop", null);
    }

    @Override
    public void startBookie(int number) throws Exception {
        ask("POST", "/bookies/" + number + "/start", null);
    }

    @Override
    public int happened(String rule) throws Exception {
        for (JsonNode one : ask("GET", "/faults", null)) {
            if (one.get("rule").asText().equals(rule)) {
                return one.get("fired").asInt();
            }
        }
        return 0;
    }

    /** Cut all connections to ZooKeeper; how many there were. */
    public int cutSessions() throws Exception {
        int cut = 0;
        for (JsonNode session : state().get("sessions")) {
            JsonNode named = Json.of(Json.field("session", session));
            // One that has no connection is refused.
            cut += send("POST", "/sessions/disconnect", named).statusCode() == OK ? 1 : 0;
        }
        return cut;
    }

    private JsonNode ask(String method, String path, JsonNode body) throws Exception {
        HttpResponse<String> answer = send(method, path, body);
        if (answer.statusCode() != OK) {
            throw new IOException(method + " " + path + ": " + answer.body());
        }
        return Json.read(answer.body());
    }

    private HttpResponse<String> send(String method, String path, JsonNode body) throws Exception {
        HttpRequest.BodyPublisher sent = body == null
                ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofString(body.toString());
        HttpRequest request = HttpRequest.newBuilder(URI.create(said.get("admin").asText() + path))
                .header("Content-Type", "application/json")
                .timeout(PATIENCE)
                .method(method, sent)
                .build();
        return http.send(request, HttpResponse.BodyHandlers.ofString());
    }

    /** It ends, and another process goes on with its store where clients know it. */
    @Override
    public void restart() throws Exception {
        stop();
        command.set(command.indexOf(ZOOKEEPER) + 1, said.get("zookeeper").asText());
        start();
    }

    /** SIGTERM; the exit code. */
    public int stop() throws InterruptedException {
        process.destroy();
        if (!process.waitFor(PATIENCE.toSeconds(), TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new IllegalStateException("it does not stop");
        }
        return process.exitValue();
    }

    /** SIGKILL, in the middle of whatever it does. */
    public void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    /** The same, by itself, as it is asked to. */
    public void crash() throws Exception {
        try {
            send("POST", "/crash", Json.of(Json.field("mode", "kill")));
        } catch (IOException e) {
            // Nobody is left to answer.
        }
        process.waitFor();
    }
}
