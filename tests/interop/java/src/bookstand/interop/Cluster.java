package bookstand.interop;

import com.fasterxml.jackson.databind.JsonNode;

/** Bookies and their metadata service, and what can be made to go wrong with them. */
public interface Cluster {

    String uri();

    /** Of each bookie {@code name} and {@code address}. */
    JsonNode bookies();

    /** A rule for what goes wrong, until it is taken out. */
    void putIn(String rule) throws Exception;

    void takeOut(String rule) throws Exception;

    void takeOutAll() throws Exception;

    /** How many operations a rule has applied to. */
    int happened(String rule) throws Exception;

    /** Bookies are counted from 1. */
    void stopBookie(int number) throws Exception;

    void startBookie(int number) throws Exception;

    void restart() throws Exception;
}
