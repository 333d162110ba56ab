//! Where bytes of services and programs enter, for the fuzzing of this repository alone.

/// What a service answers: an answer, or words about why it is none.
#[cfg(feature = "http")]
pub fn answer_of_a_service(bytes: &[u8]) {
    crate::http::take_in(bytes);
}

/// A line of a program.
pub fn line_of_a_program(bytes: &[u8]) {
    crate::command::take_in(bytes);
}
