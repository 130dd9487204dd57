package bookstand.interop;

import io.netty.buffer.ByteBufUtil;
import java.io.BufferedReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * A file of requests becomes a file of answers.
 *
 * <p>A request is one line: its kind, then {@code name=value} parted by tabs, bytes in hex. The answer is one line of
 * the same make, or {@code error=...} when the original throws.
 */
public final class Lines {

    public interface Question {
        void answer(Map<String, String> request, Map<String, String> answer) throws Exception;
    }

    private Lines() {
    }

    public static void answer(String[] files, Map<String, Question> questions) throws Exception {
        try (BufferedReader in = Files.newBufferedReader(Path.of(files[0]));
                PrintWriter out = new PrintWriter(Files.newBufferedWriter(Path.of(files[1])))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.print(answer(line, questions) + "\n");
                out.flush();
            }
        }
    }

    private static String answer(String line, Map<String, Question> questions) {
        String[] parts = line.split("\t");
        Map<String, String> request = new LinkedHashMap<>();
        for (int i = 1; i < parts.length; i++) {
            int split = parts[i].indexOf('=');
            request.put(parts[i].substring(0, split), parts[i].substring(split + 1));
        }
        Map<String, String> answer = new LinkedHashMap<>();
        try {
            questions.get(parts[0]).answer(request, answer);
        } catch (Throwable e) {
            answer.clear();
            answer.put("error", e.toString().replaceAll("[\t\n\r]", " "));
        }
        return answer.entrySet().stream().map(e -> e.getKey() + "=" + e.getValue()).collect(Collectors.joining("\t"));
    }

    public static byte[] bytes(String hex) {
        return ByteBufUtil.decodeHexDump(hex);
    }

    public static String hex(byte[] data) {
        return ByteBufUtil.hexDump(data);
    }

    public static String text(String value) {
        return hex(value.getBytes(StandardCharsets.UTF_8));
    }
}
