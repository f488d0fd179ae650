"""The database's form, as steps from an empty one. A step that was released never changes; append another.

Step n leads to `PRAGMA user_version` n. Texts are indexed by groups of three characters, which finds parts of
words and text without spaces, such as Chinese. A reply is indexed once it is no longer streaming: while it
grows it is rewritten twice a second.
"""

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE chats (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            title TEXT NOT NULL DEFAULT '',
            system TEXT NOT NULL DEFAULT '',
            model TEXT NOT NULL DEFAULT '',
            pinned INTEGER NOT NULL DEFAULT 0,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            deleted REAL,
            leaf_id INTEGER REFERENCES messages (id) ON DELETE SET NULL
        ) STRICT
        """,
        """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
            parent_id INTEGER REFERENCES messages (id) ON DELETE CASCADE,
            role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
            content TEXT NOT NULL,
            reasoning TEXT NOT NULL DEFAULT '',
            state TEXT NOT NULL CHECK (state IN ('streaming', 'complete', 'stopped', 'failed')),
            created REAL NOT NULL,
            model TEXT NOT NULL DEFAULT '',
            stats_json TEXT NOT NULL DEFAULT '',
            writer INTEGER NOT NULL DEFAULT 0
        ) STRICT
        """,
        "CREATE INDEX messages_by_chat ON messages (chat_id, parent_id)",
        "CREATE INDEX messages_by_parent ON messages (parent_id)",
        "CREATE INDEX messages_streaming ON messages (writer) WHERE state = 'streaming'",
        "CREATE VIRTUAL TABLE texts USING fts5 (content, tokenize = 'trigram')",
        """
        CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.state <> 'streaming' BEGIN
            INSERT INTO texts (rowid, content) VALUES (new.id, new.content);
        END
        """,
        """
        CREATE TRIGGER message_changed AFTER UPDATE OF content, state ON messages
        WHEN new.state <> 'streaming' BEGIN
            DELETE FROM texts WHERE rowid = new.id;
            INSERT INTO texts (rowid, content) VALUES (new.id, new.content);
        END
        """,
        """
        CREATE TRIGGER message_gone AFTER DELETE ON messages BEGIN
            DELETE FROM texts WHERE rowid = old.id;
        END
        """,
    ),
)
