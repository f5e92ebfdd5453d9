create table branches (branch varchar primary key, street varchar not null, manager varchar not null, opened date not null, seats integer not null);
create table products (product varchar primary key, kind varchar not null, price decimal(5,2) not null, weight_g integer not null, vegan boolean not null);
create table takings (day date not null, branch varchar not null, cash decimal(8,2) not null, card decimal(8,2) not null, customers integer not null);
create table sales (day date not null, branch varchar not null, product varchar not null, baked integer not null, sold integer not null);
