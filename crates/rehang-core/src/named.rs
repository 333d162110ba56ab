//! Enums whose variants have names.

/// Declares an enum whose variants have names in files and on the command line. Each name stands beside its
/// variant; `ALL`, `name` and conversion from and to text follow from them. The word in brackets is the kind
/// of thing that is named, for errors.
///
/// ```
/// rehang_core::named! {
///     /// A colour.
///     #[derive(Debug, Clone, Copy, PartialEq)]
///     pub enum Colour ("colour") {
///         /// As the sea.
///         Blue = "blue",
///         /// As grass.
///         Green = "green",
///         /// As blood.
///         Red = "red",
///     }
/// }
/// assert_eq!((Colour::ALL.len(), Colour::Blue.to_string().as_str()), (3, "blue"));
/// assert_eq!("red".parse::<Colour>()?, Colour::Red);
/// let error = "pink".parse::<Colour>().unwrap_err().to_string();
/// assert_eq!(error, "colour cannot be \"pink\"; expected blue, green or red");
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        pub enum $kind:ident ($what:literal) { $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$about])*
        pub enum $kind {
            $($(#[$of_variant])* $variant,)+
        }

        impl $kind {
            /// All variants, in the order of the documentation.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Name of the variant in files and on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $kind {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<Self> {
                let unknown = || $crate::Error::unknown_name($what, text, &[$($name),+]);
                Self::ALL.into_iter().find(|value| value.name() == text).ok_or_else(unknown)
            }
        }
    };
}
