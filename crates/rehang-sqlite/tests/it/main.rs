//! The embedded gallery from outside, in one program. What a loss of power leaves is tested in another one, which defines functions of
//! the C library anew.

mod faults;
mod formats;
mod plain_sql;
mod processes;
mod twin;
