package bookstand.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A process that serves a store. */
public final class Served {

    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final ObjectMapper JSON = new ObjectMapper();

    public final String uri;
    public final String admin;
    private final Process process;

    /** The command says where it is on one line of JSON. */
    public Served(String command) throws IOException {
        List<String> words = new ArrayList<>(Arrays.asList(command.split(" ")));
        process = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader out =
                new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        String line = out.readLine();
        if (line == null) {
            throw new IOException("nothing is served by " + command);
        }
        JsonNode said = JSON.readTree(line);
        uri = said.get("metadata_service_uri").asText();
        admin = said.get("admin").asText();
    }

    /** Cut all connections to ZooKeeper; how many there were. */
    public int cutSessions() throws IOException, InterruptedException {
        HttpRequest state = HttpRequest.newBuilder(URI.create(admin + "/state")).build();
        JsonNode sessions =
                JSON.readTree(CLIENT.send(state, HttpResponse.BodyHandlers.ofString()).body()).get("sessions");
        int cut = 0;
        for (JsonNode session : sessions) {
            HttpRequest request = post("/sessions/disconnect", "{\"session\": " + session + "}");
            cut += CLIENT.send(request, HttpResponse.BodyHandlers.discarding()).statusCode() == 200 ? 1 : 0;
        }
        return cut;
    }

    /** SIGTERM; the exit code. */
    public int stop() throws InterruptedException {
        process.destroy();
        if (!process.waitFor(60, TimeUnit.SECONDS)) {
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
    public void crash() throws IOException, InterruptedException {
        try {
            CLIENT.send(post("/crash", "{\"mode\": \"kill\"}"), HttpResponse.BodyHandlers.discarding());
        } catch (IOException e) {
            // Nobody is left to answer.
        }
        process.waitFor();
    }

    private HttpRequest post(String path, String json) {
        return HttpRequest.newBuilder(URI.create(admin + path))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(json))
                .build();
    }
}
