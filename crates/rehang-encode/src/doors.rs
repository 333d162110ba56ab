//! Doors through which bytes of services and programs enter, for the fuzzing of this repository alone.

/// Takes in what a service sends: an answer, or words about why it is none.
#[cfg(feature = "http")]
pub fn answer_of_a_service(bytes: &[u8]) {
    crate::http::take_in(bytes);
}

/// Takes in a line that a program writes.
pub fn line_of_a_program(bytes: &[u8]) {
    crate::command::take_in(bytes);
}
