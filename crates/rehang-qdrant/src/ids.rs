//! Ids of points: the keys of items, and keys that are made from names.

use rehang_store::ItemKey;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

/// Returns the id of a point, as a request has it.
pub(crate) fn id_of(key: ItemKey) -> Value {
    u64::try_from(key.bits()).map_or_else(|_| Value::String(text_of(key)), Value::from)
}

/// Writes a key as text: the id of an item.
pub(crate) fn text_of(key: ItemKey) -> String {
    let bits = key.bits();
    if let Ok(number) = u64::try_from(bits) {
        return number.to_string();
    }
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Reads the key of a point's id; `None` for a UUID whose first half is zero.
pub(crate) fn key_of(id: &Value) -> Option<ItemKey> {
    match id {
        Value::String(uuid) => uuid_of(uuid),
        number => number.as_u64().map(ItemKey::from),
    }
}

fn uuid_of(text: &str) -> Option<ItemKey> {
    let has_form = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| {
            if [8, 13, 18, 23].contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
        });
    let bits = u128::from_str_radix(&text.replace('-', ""), 16).ok().filter(|_| has_form)?;
    (bits >> 64 != 0).then(|| ItemKey::new(bits))
}

/// Returns the key of an item's id, and whether it was made from the id. A number and a UUID are keys
/// themselves; any other id is hashed.
pub(crate) fn key_of_name(id: &str) -> (ItemKey, bool) {
    if let Some(number) = id.parse::<u64>().ok().filter(|number| number.to_string() == id) {
        return (ItemKey::from(number), false);
    }
    if let Some(key) = uuid_of(id) {
        return (key, text_of(key) != id);
    }
    (hashed(id.as_bytes()), true)
}

/// Makes a UUID from bytes. By its form (version 8), an application has made it by a rule of its own.
pub(crate) fn hashed(bytes: &[u8]) -> ItemKey {
    let bits = xxh3_128(bytes) & !(0xf << 76) & !(0x3 << 62);
    ItemKey::new(bits | 0x8 << 76 | 0x2 << 62)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_as_it_was() {
        for id in ["0", "7", "18446744073709551615", "a1b2c3d4-0000-4000-8000-00000000000f"] {
            let (key, is_name) = key_of_name(id);
            assert_eq!((text_of(key).as_str(), is_name), (id, false));
            assert_eq!(key_of(&id_of(key)), Some(key));
        }
        // Ids of four kinds: names, a number with a sign, one that is too large, and a UUID
        // that looks like a number.
        for name in ["a", "", "+7", "07", "18446744073709551616", "00000000-0000-0000-0000-000000000007"] {
            let (key, is_name) = key_of_name(name);
            assert!(is_name && key.bits() >> 64 != 0, "{name}");
            assert_eq!(uuid_of(&text_of(key)), Some(key));
            assert_eq!(&text_of(key)[14..15], "8", "{name}");
        }
        assert_ne!(key_of_name("a"), key_of_name("b"));
    }
}
