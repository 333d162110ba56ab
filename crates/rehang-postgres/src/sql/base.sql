
CREATE SCHEMA IF NOT EXISTS rehang;
CREATE SEQUENCE IF NOT EXISTS rehang.revision;
CREATE TABLE IF NOT EXISTS rehang.gallery (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relation regclass NOT NULL UNIQUE,
    name text NOT NULL,
    options text NOT NULL,
    joined text NOT NULL,
    format int NOT NULL,
    serving text,
    listed boolean NOT NULL DEFAULT false,
    columns text
);
CREATE TABLE IF NOT EXISTS rehang.space (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
    name text NOT NULL,
    dimension int NOT NULL CHECK (dimension > 0),
    distance text NOT NULL CHECK (distance IN (DISTANCES)),
    normalised boolean NOT NULL,
    written_as text NOT NULL CHECK (written_as IN ('old', 'native')),
    epoch bigint NOT NULL DEFAULT 0,
    in_column text,
    listed boolean NOT NULL DEFAULT false,
    UNIQUE (gallery, name)
);
CREATE TABLE IF NOT EXISTS rehang.document (
    gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
    name text NOT NULL,
    version bigint NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (gallery, name)
);
