// What a program of Java asks by JDBC: metadata, parameters, rows a few at a time, a refusal.

import java.sql.*;
import java.util.*;

public class Ask {
    public static void main(String[] given) throws Exception {
        Properties with = new Properties();
        with.setProperty("user", "ann");
        with.setProperty("password", "secret");
        with.setProperty("options", "-c dpsql.epsilon=2");
        try (Connection con = DriverManager.getConnection(given[0], with)) {
            DatabaseMetaData about = con.getMetaData();
            System.out.println("product " + about.getDatabaseProductName() + " " + about.getDatabaseMajorVersion());
            print("schemas", about.getSchemas(), 1);
            print("tables", about.getTables(null, "main", "%", new String[] {"TABLE", "VIEW"}), 3);
            print("columns", about.getColumns(null, "main", "visits", "%"), 4, 6, 12);
            print("keys", about.getPrimaryKeys(null, "main", "visits"), 4);
            print("imported", about.getImportedKeys(null, "main", "visits"), 4);
            print("indexes", about.getIndexInfo(null, "main", "visits", false, true), 6);
            try (PreparedStatement asked = con.prepareStatement(
                    "SELECT state, COUNT(*) AS n FROM visits WHERE age >= ? AND day > ? AND cost < ? GROUP BY state")) {
                asked.setInt(1, 18);
                asked.setDate(2, java.sql.Date.valueOf("2020-01-31"));
                asked.setBigDecimal(3, new java.math.BigDecimal("400.5"));
                print("asked", asked.executeQuery(), 1);
                ResultSetMetaData shape = asked.getMetaData();
                System.out.println("shape " + shape.getColumnName(2) + " " + shape.getColumnTypeName(2));
            }
            con.setAutoCommit(false);
            try (Statement few = con.createStatement()) {
                few.setFetchSize(2);
                print("few", few.executeQuery("SELECT i FROM range(7) t(i)"), 1);
            }
            con.commit();
            try (Statement wrong = con.createStatement()) {
                wrong.executeQuery("SELECT nope FROM visits");
            } catch (SQLException refused) {
                System.out.println("refused " + refused.getSQLState());
            }
            con.rollback();
        }
    }

    static void print(String what, ResultSet rows, int... columns) throws SQLException {
        List<String> found = new ArrayList<>();
        while (rows.next()) {
            List<String> one = new ArrayList<>();
            for (int column : columns) one.add(rows.getString(column));
            found.add(String.join("|", one));
        }
        System.out.println(what + " " + String.join(", ", found));
    }
}
