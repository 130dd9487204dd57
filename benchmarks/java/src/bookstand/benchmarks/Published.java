package bookstand.benchmarks;

import it.unimi.dsi.fastutil.longs.Long2ObjectAVLTreeMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectOpenHashMap;
import it.unimi.dsi.fastutil.longs.Long2ObjectSortedMap;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Arrays;
import java.util.Map;
import org.roaringbitmap.longlong.Roaring64Bitmap;

/**
 * The published structure, time bucket -> ledger -> Roaring64Bitmap, with one add per message.
 *
 * <p>Each line of "name=value" words on stdin requests a round; a line of the same form is the result. The inner map is
 * sorted, as in the chapter on the time bucket ("structure=published"), or a hash map, as in PIP-393
 * ("structure=pip393"). The columns of messages are created before the clock starts. CPU nanoseconds are those of this
 * thread, without garbage collector and compiler.
 */
public final class Published implements Rounds {
    private static final int CHUNK = 1_000_000;
    private static final long START = 1_700_000_000_000L;
    private static final long FIRST_LEDGER = 10_000;
    private static final long PER_LEDGER = 50_000;
    private static final long HOUR = 3_600_000;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final long[] times = new long[CHUNK];
    private final long[] ledgers = new long[CHUNK];
    private final long[] entries = new long[CHUNK];

    private long[] drainedTimes = new long[CHUNK];
    private long[] drainedLedgers = new long[CHUNK];
    private long[] drainedEntries = new long[CHUNK];

    private Long2ObjectSortedMap<Long2ObjectMap<Roaring64Bitmap>> map;

    public static void main(String[] arguments) throws Exception {
        new Published().answer();
    }

    @Override
    public String round(Map<String, String> asked) {
        boolean random = asked.get("workload").equals("random");
        boolean hash = asked.get("structure").equals("pip393");
        boolean measured = asked.getOrDefault("memory", "0").equals("1");
        long perMilli = Long.parseLong(asked.get("per_milli"));
        long percent = Long.parseLong(asked.get("percent"));
        long messages = Long.parseLong(asked.get("messages"));
        int bits = Integer.parseInt(asked.get("bits"));

        map = null;
        System.gc();
        long before = measured ? usedHeap() : 0;
        map = new Long2ObjectAVLTreeMap<>();
        long added = 0;
        long addCpu = 0;
        long addWall = 0;
        for (long first = 0; first < messages; first += CHUNK) {
            long end = Math.min(first + CHUNK, messages);
            int count = random ? layOutRandom(first, end, perMilli) : layOutOrdered(first, end, perMilli, percent);
            long wall = System.nanoTime();
            long cpu = THREADS.getCurrentThreadCpuTime();
            if (hash) {
                addHashed(count, bits);
            } else {
                addSorted(count, bits);
            }
            addCpu += THREADS.getCurrentThreadCpuTime() - cpu;
            addWall += System.nanoTime() - wall;
            added += count;
        }
        long heap = measured ? usedHeap() - before : 0;
        int buckets = map.size();

        long last = START + messages / perMilli + 1 + (random ? HOUR : 0);
        long step = Math.max(100_000 / perMilli, 1L << bits);
        long drained = 0;
        long checksum = 0;
        long drainCpu = 0;
        long drainWall = 0;
        for (long now = START + step; !map.isEmpty(); now = Math.min(now + step, last)) {
            long wall = System.nanoTime();
            long cpu = THREADS.getCurrentThreadCpuTime();
            int count = drain(now);
            drainCpu += THREADS.getCurrentThreadCpuTime() - cpu;
            drainWall += System.nanoTime() - wall;
            drained += count;
            for (int i = 0; i < count; i++) {
                checksum += drainedTimes[i] * 3 + drainedLedgers[i] * 5 + drainedEntries[i] * 7;
            }
        }
        return "added=" + added + " drained=" + drained + " checksum=" + checksum + " buckets=" + buckets
                + " add_cpu=" + addCpu + " add_wall=" + addWall + " drain_cpu=" + drainCpu + " drain_wall=" + drainWall
                + " memory=" + heap;
    }

    private void addSorted(int count, int bits) {
        for (int i = 0; i < count; i++) {
            map.computeIfAbsent(times[i] & (-1L << bits), key -> new Long2ObjectAVLTreeMap<>())
                    .computeIfAbsent(ledgers[i], key -> new Roaring64Bitmap())
                    .add(entries[i]);
        }
    }

    private void addHashed(int count, int bits) {
        for (int i = 0; i < count; i++) {
            map.computeIfAbsent(times[i] & (-1L << bits), key -> new Long2ObjectOpenHashMap<>())
                    .computeIfAbsent(ledgers[i], key -> new Roaring64Bitmap())
                    .add(entries[i]);
        }
    }

    /** Removes all messages up to {@code now}, and returns them as three columns. */
    private int drain(long now) {
        int count = 0;
        while (!map.isEmpty() && map.firstLongKey() <= now) {
            long time = map.firstLongKey();
            for (Long2ObjectMap.Entry<Roaring64Bitmap> ledger : map.get(time).long2ObjectEntrySet()) {
                long[] found = ledger.getValue().toArray();
                int end = count + found.length;
                if (end > drainedTimes.length) {
                    drainedTimes = Arrays.copyOf(drainedTimes, 2 * end);
                    drainedLedgers = Arrays.copyOf(drainedLedgers, 2 * end);
                    drainedEntries = Arrays.copyOf(drainedEntries, 2 * end);
                }
                Arrays.fill(drainedTimes, count, end, time);
                Arrays.fill(drainedLedgers, count, end, ledger.getLongKey());
                System.arraycopy(found, 0, drainedEntries, count, found.length);
                count = end;
            }
            map.remove(time);
        }
        return count;
    }

    /** Messages in order with equal delays, of which a percentage is delayed. */
    private int layOutOrdered(long first, long end, long perMilli, long percent) {
        int count = 0;
        for (long i = first; i < end; i++) {
            if (percent == 100 || Long.remainderUnsigned(mixed(~i), 100) < percent) {
                times[count] = START + i / perMilli + 1;
                ledgers[count] = FIRST_LEDGER + i / PER_LEDGER;
                entries[count++] = i % PER_LEDGER;
            }
        }
        return count;
    }

    /** Messages with random delays of up to an hour. */
    private int layOutRandom(long first, long end, long perMilli) {
        int count = 0;
        for (long i = first; i < end; i++) {
            times[count] = START + i / perMilli + 1 + Long.remainderUnsigned(mixed(i), HOUR);
            ledgers[count] = FIRST_LEDGER + i / PER_LEDGER;
            entries[count++] = i % PER_LEDGER;
        }
        return count;
    }

    /** SplitMix64. */
    private static long mixed(long i) {
        long z = i * 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    private static long usedHeap() {
        Runtime runtime = Runtime.getRuntime();
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
