package bookstand.interop;

import com.beust.jcommander.Parameter;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.tools.cli.helpers.BookieShellCommand;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;

/** The commands of {@code bookkeeper shell}, each with its options and their other names. The shell keeps both to itself. */
final class Shell {

    private Shell() {
    }

    static void commands(Map<String, String> request, Map<String, String> answer) throws Exception {
        Map<?, ?> commands = (Map<?, ?>) field(BookieShell.class, new BookieShell(), "commands");
        for (Map.Entry<?, ?> command : commands.entrySet()) {
            answer.put((String) command.getKey(), String.join(" ", options(command.getValue())));
        }
        answer.put("number of commands", String.valueOf(commands.size()));
    }

    private static Set<String> options(Object command) throws Exception {
        if (command instanceof BookieShellCommand) {
            return annotated(field(BookieShellCommand.class, command, "bkCmd"));
        }
        Set<String> found = new TreeSet<>();
        Method getter;
        try {
            getter = command.getClass().getDeclaredMethod("getOptions");
        } catch (NoSuchMethodException e) {
            return found;
        }
        getter.setAccessible(true);
        for (Option option : ((Options) getter.invoke(command)).getOptions()) {
            Stream<String> names = Stream.of(
                    option.getOpt() == null ? "" : "-" + option.getOpt(),
                    option.getLongOpt() == null ? "" : "--" + option.getLongOpt());
            found.add(names.filter(name -> !name.isEmpty()).collect(Collectors.joining("/")));
        }
        return found;
    }

    /** Newer commands have flags with annotations. */
    private static Set<String> annotated(Object command) throws Exception {
        Object spec = field(Class.forName("org.apache.bookkeeper.tools.framework.CliCommand"), command, "spec");
        Object flags = field(spec.getClass(), spec, "flags");
        Set<String> found = new TreeSet<>();
        for (Field field : flags.getClass().getDeclaredFields()) {
            Parameter parameter = field.getAnnotation(Parameter.class);
            if (parameter != null) {
                found.add(String.join("/", parameter.names()));
            }
        }
        return found;
    }

    private static Object field(Class<?> of, Object object, String name) throws Exception {
        Field field = of.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(object);
    }
}
