CREATE TABLE IF NOT EXISTS rehang.map (
    gallery int PRIMARY KEY REFERENCES rehang.gallery ON DELETE CASCADE,
    space int NOT NULL REFERENCES rehang.space ON DELETE CASCADE,
    epoch bigint NOT NULL,
    fingerprint text NOT NULL,
    width int NOT NULL,
    layers int NOT NULL,
    scales boolean NOT NULL,
    from_direction boolean NOT NULL,
    has_length_one boolean NOT NULL,
    raw_lengths real[],
    lengths real[],
    sigma2 real
);
ALTER TABLE rehang.map ADD COLUMN IF NOT EXISTS gamma real;
