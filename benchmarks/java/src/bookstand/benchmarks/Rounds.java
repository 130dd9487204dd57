package bookstand.benchmarks;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;

/** Runs a round for each line of "name=value" words on stdin, and prints the result in the same form. */
public interface Rounds {

    String round(Map<String, String> asked) throws Exception;

    default void answer() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, String> words = new HashMap<>();
            for (String word : line.trim().split(" ")) {
                int equals = word.indexOf('=');
                words.put(word.substring(0, equals), word.substring(equals + 1));
            }
            System.out.println(round(words));
            System.out.flush();
        }
    }
}
