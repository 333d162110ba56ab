CREATE TABLE IF NOT EXISTS rehang.bridge (
    gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
    fingerprint text NOT NULL,
    model text NOT NULL,
    width int NOT NULL,
    scales boolean NOT NULL,
    share float8 NOT NULL CHECK (share > 0 AND share <= 1),
    length float8 NOT NULL,
    PRIMARY KEY (gallery, fingerprint)
);
