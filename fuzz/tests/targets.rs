//! The targets' own tests, which stand beside what they test. As a program of its own this takes a second to build; in the
//! library's test program all targets would be compiled again.

#![forbid(unsafe_code)]

/// A test for each function of a module `checks`.
macro_rules! tests_of {
    ($($name:ident: $($module:ident)::+ => $($test:ident)+;)+) => {
        $(mod $name {
            use lasthop_fuzz::$($module)::+ as checks;
            $(#[test]
            fn $test() {
                checks::$test();
            })+
        })+
    };
}

tests_of! {
    connections: connections::checks => seeds_are_what_they_say;
    control_messages: control_messages::checks =>
        the_tools_seeds_install_flows
        a_client_that_takes_batches_reads_each_end;
    control_queue: control_queue::checks => the_seed_is_granted;
    descriptor_tables: descriptor_tables::checks => seeds_deliver_packets_that_are_compared;
    ranges: descriptor_tables::range_checks => parts_are_merged_and_compared;
    flow_actions: flow_actions::checks => seeds_do_something;
    headers: headers::checks => seeds_are_what_they_say;
    input: input::checks => what_was_written_is_read_and_then_zeroes;
    kernel_types: kernel_types::checks => the_seed_has_all_that_is_looked_for;
    mutation: mutation::checks => the_same_number_gives_the_same_changes_within_the_limit;
    vhost_messages: vhost_messages::checks => seeds_start_rings_and_go_on_to_their_end;
    files: vhost_messages::file_checks => each_kind_can_be_made_and_is_read_as_it_was_written;
    script: vhost_messages::script_checks => a_message_is_read_as_it_was_written;
}
