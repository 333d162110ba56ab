//! The embedded gallery from outside, in one program. The tests of a loss of power are another program, which
//! defines functions of the C library anew.

mod faults;
mod formats;
mod plain_sql;
mod processes;
mod twin;
